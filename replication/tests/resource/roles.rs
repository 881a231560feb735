//! Who becomes Primary, and who waits.

use block::{Failure, Status};
use replication::{Event, Input, Quorum, Role, Verb};

use crate::world::World;

/// The contract, Roles: a session that was there when an operator forced the node to be Secondary does not undo it; a
/// new one may, and so may the operator. Paths say how it stands.
#[test]
fn a_forced_demotion_holds() {
    let mut world = World::new(2, Quorum::Off);
    world.put(0, Input::Sessions { count: 1 });
    let first = world.write(0, 0);
    assert_eq!((world.status(first), world.role(0)), (Some(&Status::Done), Role::Primary));
    assert!(world.operate(0, Verb::Secondary { force: false }).is_err(), "a session uses it");
    world.operate(0, Verb::Secondary { force: true }).unwrap();
    let serves =
        world.events.iter().rfind(|(node, event)| *node == 0 && matches!(event, Event::Serves { .. }));
    assert_eq!(serves, Some(&(0, Event::Serves { able: false })));
    let refused = world.write(0, 0);
    assert_eq!(world.status(refused), Some(&Status::Failed(Failure::Standby)));
    world.put(0, Input::Sessions { count: 0 });
    assert_eq!(world.role(0), Role::Secondary);
    world.put(0, Input::Sessions { count: 1 });
    let after = world.write(0, 0);
    assert_eq!((world.status(after), world.role(0)), (Some(&Status::Done), Role::Primary));
    world.operate(0, Verb::Secondary { force: true }).unwrap();
    world.operate(0, Verb::Primary { force: false }).unwrap();
    let last = world.write(0, 0);
    assert_eq!(world.status(last), Some(&Status::Done));
}

/// P9, and the default of `on-no-quorum`: what is under way and what comes later waits, and the paths stay as they are, so
/// that initiators wait as well; both go on once quorum is back.
#[test]
fn without_quorum_commands_wait() {
    let mut world = World::new(3, Quorum::Majority);
    world.put(0, Input::Sessions { count: 1 });
    let first = world.write(0, 0);
    assert_eq!(world.status(first), Some(&Status::Done));
    world.events.clear();
    world.hung[1] = true;
    let under_way = world.write(0, 1);
    world.cut(0, 2);
    world.cut(0, 1);
    let later = world.write(0, 2);
    assert_eq!((world.status(under_way), world.status(later)), (None, None));
    assert!(!world.events.contains(&(0, Event::Serves { able: false })), "{:?}", world.events);
    world.hung[1] = false;
    world.connect(0, 2);
    assert_eq!((world.status(under_way), world.status(later)), (Some(&Status::Done), Some(&Status::Done)));
}

/// P14: what waits for quorum ends when nobody waits for it any more, is never stored later, and keeps nothing else back.
#[test]
fn what_waits_can_be_aborted() {
    let mut world = World::new(3, Quorum::Majority);
    world.put(0, Input::Sessions { count: 1 });
    let first = world.write(0, 0);
    assert_eq!(world.status(first), Some(&Status::Done));
    world.hung[1] = true;
    let sent = world.write(0, 1);
    world.cut(0, 2);
    world.cut(0, 1);
    let (held, behind) = (world.write(0, 2), world.write(0, 2));
    for id in [sent, held, behind, first] {
        world.put(0, Input::Abort { id });
    }
    for id in [sent, held, behind] {
        assert_eq!(world.status(id), Some(&Status::Failed(Failure::Aborted)));
    }
    assert_eq!(world.statuses.len(), 4, "each is answered once");
    let written = world.cores[0].status().devices[0].written;
    world.hung[1] = false;
    world.connect(0, 2);
    assert_eq!(world.cores[0].status().devices[0].written, written, "what was aborted is not stored now");
    let next = world.write(0, 2);
    assert_eq!((world.status(next), world.statuses.len()), (Some(&Status::Done), 5));
}
