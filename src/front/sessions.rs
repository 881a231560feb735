//! The iSCSI sessions of a target: who holds which name, who follows whom, and who has to settle before what is told.
//!
//! A session is named by its initiator and ISID (RFC 7143 4.4.3), which is the nexus of SCSI as well. A new login
//! by a name ends the session that has it, and takes its seat only when every command of that one has settled. This is
//! what keeps promise P14 here: a write of the old session is either not submitted any more or done before the new
//! session's login is answered, so it never lands after a write that the new session was told is done.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use block::VolumeNumber;
use target_proto::iscsi::pdu::{Isid, ManagementAnswer};
use target_proto::scsi::NexusId;
use tokio::sync::watch;

use crate::local::Queue;

/// What others want of a session.
#[derive(Debug)]
pub(super) enum Note {
    /// End, whatever the initiator does.
    End(Rc<Settling>),
    /// Abort the tasks on a volume, or all of them.
    Abort(Option<VolumeNumber>, Rc<Settling>),
    /// Abort the tasks on a volume because another session cleared its task set.
    Clear(VolumeNumber, Rc<Settling>),
    /// The tasks of other sessions have settled: a task management request can be answered.
    Managed(u32, ManagementAnswer),
    /// The tasks of other sessions have settled: a PREEMPT AND ABORT goes on. By the number of its task.
    Aborted(u64),
    /// The node stops: ask the initiator to log out.
    Stop,
}

/// Held by every session that has yet to settle. When the last of them lets go, who waits for it is told.
#[derive(Debug, Default)]
pub(super) struct Settling {
    tell: RefCell<Option<(Rc<Inbox>, Note)>>,
}

impl Settling {
    /// Puts `note` into `inbox` when everyone has settled.
    pub(super) fn then(inbox: &Rc<Inbox>, note: Note) -> Rc<Self> {
        Rc::new(Self { tell: RefCell::new(Some((Rc::clone(inbox), note))) })
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        if let Some((inbox, note)) = self.tell.take() {
            inbox.push(note);
        }
    }
}

/// The notes that wait for a session.
pub(super) type Inbox = Queue<Note>;

/// The name of a session within its target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    /// The name of the initiator.
    pub(super) initiator: String,
    /// The initiator's part of the session identifier.
    pub(super) isid: Isid,
}

/// The sessions of a target. It lives on the shard of the target's resource.
#[derive(Debug, Default)]
pub struct Sessions {
    holders: RefCell<BTreeMap<Name, Holder>>,
    /// How many nexuses there were: a number is never given twice.
    nexuses: Cell<u64>,
    stopping: Cell<bool>,
}

/// Who has a name.
#[derive(Clone, Debug)]
struct Holder {
    nexus: NexusId,
    inbox: Rc<Inbox>,
    /// Closed once the session has settled and gone.
    gone: watch::Receiver<()>,
}

/// A session's place among the sessions of its target, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    sessions: Rc<Sessions>,
    name: Name,
    /// The nexus.
    pub(super) nexus: NexusId,
    /// What others want.
    pub(super) inbox: Rc<Inbox>,
    _present: watch::Sender<()>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut holders = self.sessions.holders.borrow_mut();
        if holders.get(&self.name).is_some_and(|holder| holder.nexus == self.nexus) {
            holders.remove(&self.name);
        }
    }
}

/// Why there is no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSeat {
    /// The node stops.
    Stopping,
    /// There are as many sessions as a target may have.
    Full,
}

impl Sessions {
    /// Takes the name. Whoever has it is told to end; the future that comes with the seat waits until it has.
    pub(super) fn take(
        self: &Rc<Self>,
        name: Name,
    ) -> Result<(Seat, impl Future<Output = ()> + use<>), NoSeat> {
        if self.stopping.get() {
            return Err(NoSeat::Stopping);
        }
        let mut holders = self.holders.borrow_mut();
        if holders.len() >= SESSIONS_MAX && !holders.contains_key(&name) {
            return Err(NoSeat::Full);
        }
        self.nexuses.set(self.nexuses.get() + 1);
        let nexus = NexusId(self.nexuses.get());
        let inbox = Rc::<Inbox>::default();
        let (present, gone) = watch::channel(());
        let before = holders.insert(name.clone(), Holder { nexus, inbox: Rc::clone(&inbox), gone });
        let seat = Seat { sessions: Rc::clone(self), name, nexus, inbox, _present: present };
        if let Some(before) = &before {
            before.inbox.push(Note::End(Rc::default()));
        }
        let wait = async move {
            if let Some(mut before) = before {
                // Nothing is ever sent: an error tells that the other end is gone, which is what is waited for.
                let _ = before.gone.changed().await;
            }
        };
        Ok((seat, wait))
    }

    /// Sends a note to every session but one, and to those of `nexuses` only, where given.
    pub(super) fn tell(&self, but: NexusId, nexuses: Option<&[NexusId]>, note: impl Fn() -> Note) {
        let holders = self.holders.borrow();
        let meant = |holder: &&Holder| {
            holder.nexus != but && nexuses.is_none_or(|nexuses| nexuses.contains(&holder.nexus))
        };
        for holder in holders.values().filter(meant) {
            holder.inbox.push(note());
        }
    }

    /// Takes no more sessions, asks every initiator to log out, and returns once all sessions have settled and gone.
    /// Whoever does not log out in time is dropped.
    pub async fn stop(&self) {
        self.stopping.set(true);
        let holders: Vec<Holder> = self.holders.borrow().values().cloned().collect();
        for holder in &holders {
            holder.inbox.push(Note::Stop);
        }
        for mut holder in holders {
            // As above: an error is what is waited for.
            let _ = holder.gone.changed().await;
        }
    }
}

/// The sessions that a target may have at once.
const SESSIONS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(initiator: &str) -> Name {
        Name { initiator: initiator.to_owned(), isid: Isid([0; 6]) }
    }

    /// P14: who logs in again waits until the session that had the name is gone; whoever comes third waits for both.
    #[tokio::test(flavor = "current_thread")]
    async fn a_name_has_one_session_at_a_time() {
        let sessions = Rc::<Sessions>::default();
        let (first, free) = sessions.take(name("a")).unwrap();
        free.await;
        let (second, second_may_go) = sessions.take(name("a")).unwrap();
        let mut notes = Vec::new();
        first.inbox.take(&mut notes).await;
        assert!(matches!(notes[..], [Note::End(_)]));
        let mut second_may_go = std::pin::pin!(second_may_go);
        tokio::select! {
            biased;
            () = &mut second_may_go => panic!("the first session is still there"),
            () = tokio::task::yield_now() => {}
        }
        let (third, third_may_go) = sessions.take(name("a")).unwrap();
        drop(first);
        second_may_go.await;
        drop(second);
        third_may_go.await;
        assert!(second_is_replaced_by(&sessions, third.nexus));
    }

    fn second_is_replaced_by(sessions: &Sessions, nexus: NexusId) -> bool {
        sessions.holders.borrow().values().map(|holder| holder.nexus).eq([nexus])
    }

    /// RFC 7143 4.2.3.3: an answer that waits for several sessions comes once, after the last of them.
    #[tokio::test(flavor = "current_thread")]
    async fn the_last_to_settle_tells() {
        let inbox = Rc::<Inbox>::default();
        let settling = Settling::then(&inbox, Note::Aborted(7));
        let other = Rc::clone(&settling);
        drop(settling);
        let mut notes = Vec::new();
        inbox.take_now(&mut notes);
        assert!(notes.is_empty());
        drop(other);
        inbox.take_now(&mut notes);
        assert!(matches!(notes[..], [Note::Aborted(7)]));
    }

    /// A node that stops takes nobody in, and waits for those that are there.
    #[tokio::test(flavor = "current_thread")]
    async fn stopping_waits_for_everyone() {
        let sessions = Rc::<Sessions>::default();
        let (seat, _) = sessions.take(name("a")).unwrap();
        let leave = async {
            let mut notes = Vec::new();
            seat.inbox.take(&mut notes).await;
            assert!(matches!(notes[..], [Note::Stop]));
            drop(seat);
        };
        tokio::join!(sessions.stop(), leave);
        assert_eq!(sessions.take(name("b")).err(), Some(NoSeat::Stopping));
    }
}
