//! Sessions over real sockets, with a volume that answers when the test says so.

use std::cell::Cell;
use std::future::Future;
use std::path::Path;

use block::{BlockSize, Command, CommandId, Payload};
use ops::config::Config;
use ops::metrics::Latencies;
use replication::Input;
use target_proto::iscsi::initiator::{Completed, Event, Initiator, Settings};
use target_proto::iscsi::pdu::{AsyncEvent, Direction, Isid};
use target_proto::scsi::{
    PathState, PortGroup, RelativePort, TargetIdentity, TargetPort, UnitConfig, VolumeIdentity,
};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

use super::super::listener::negotiate;
use super::*;
use crate::local::Queue;
use crate::volume::{Handle, Mailbox, Waiting};

const INITIATOR: &str = "iqn.2026-11.org.example:host";
const SIZE: u32 = 1 << 20;

/// A node with one volume in memory.
struct Node {
    export: Rc<Export>,
    mailbox: Rc<Mailbox>,
    waiting: Rc<Waiting>,
    catalog: Arc<Catalog>,
    listener: TcpListener,
    iqn: String,
}

impl Node {
    async fn start() -> Rc<Self> {
        let config =
            Config::single("test", Path::new("/nowhere/disk"), u64::from(SIZE), "/nowhere/sock".into());
        let config = config.unwrap();
        let catalog = Arc::new(Catalog::new(&config, &config.nodes[0]).unwrap());
        let iqn = config.resources[0].export.iqn.clone();
        let port = TargetPort { group: PortGroup(1), relative: RelativePort(1), portal_group: 1 };
        let identity = TargetIdentity { iqn: iqn.clone(), port, peers: Vec::new() };
        let unit = UnitConfig {
            volume: VolumeNumber(0),
            size: u64::from(SIZE),
            block_size: BlockSize::B512,
            physical_block_size: BlockSize::B4096,
            identity: VolumeIdentity(1),
            thin: true,
            read_only: false,
        };
        let mut target = Target::new(identity, vec![unit]);
        target.set_path(PathState::ActiveOptimized, &mut Vec::new());
        let latencies = Arc::new(Latencies::new("test", []));
        let (mailbox, waiting) = (Rc::<Mailbox>::default(), Rc::new(Waiting::new(latencies)));
        let handle = Handle::new(Rc::clone(&mailbox), Rc::clone(&waiting), Rc::<Queue<_>>::default());
        let export = Rc::new(Export::new(handle, target));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = Rc::new(Self { export, mailbox, waiting, catalog, listener, iqn });
        spawn_local(Rc::clone(&node).accept());
        node
    }

    async fn accept(self: Rc<Self>) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            let accepted = negotiate(stream, address, &self.catalog).await.unwrap().unwrap();
            spawn_local(serve(Rc::clone(&self.export), accepted, Arc::default()));
        }
    }

    /// The next commands that sessions submit.
    async fn submitted(&self) -> Vec<(CommandId, Command)> {
        loop {
            let mut inputs = Vec::new();
            self.mailbox.take(&mut inputs).await;
            let commands: Vec<_> = inputs
                .into_iter()
                .filter_map(|input| match input {
                    Input::Command { id, command, .. } => Some((id, command)),
                    _ => None,
                })
                .collect();
            if !commands.is_empty() {
                return commands;
            }
        }
    }

    async fn client(&self, isid: u8) -> Client {
        let stream = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        let mut settings = Settings::new(INITIATOR, &self.iqn);
        settings.isid = Isid([0x80, 0, 0, 0, 0, isid]);
        Client { stream, core: Initiator::new(settings, 1), received: BytesMut::new(), events: Vec::new() }
    }

    /// A client that has logged in and has taken its unit attention.
    async fn session(&self, isid: u8) -> Client {
        let mut client = self.client(isid).await;
        assert!(matches!(client.next().await, Some(Event::LoggedIn { .. })));
        let task = client.core.command(0, [0; 16], Direction::None, 0, Payload::new());
        assert_eq!(client.completed(task).await.status, 2, "a unit attention");
        client
    }
}

struct Client {
    stream: TcpStream,
    core: Initiator,
    received: BytesMut,
    events: Vec<Event>,
}

impl Client {
    async fn flush(&mut self) {
        send(&mut self.stream, self.core.output()).await.unwrap();
    }

    /// The next event; `None` once the target has closed the connection.
    async fn next(&mut self) -> Option<Event> {
        while self.events.is_empty() {
            self.flush().await;
            if self.stream.read_buf(&mut self.received).await.unwrap_or(0) == 0 {
                return None;
            }
            self.core.receive(&mut self.received, &mut self.events).unwrap();
        }
        Some(self.events.remove(0))
    }

    async fn completed(&mut self, task: u32) -> Completed {
        match self.next().await {
            Some(Event::Completed(completed)) if completed.task == task => completed,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, lba: u8, value: u8) -> u32 {
        let mut cdb = [0; 16];
        (cdb[0], cdb[5], cdb[8]) = (0x2a, lba, 1);
        self.core.command(0, cdb, Direction::Write, 512, Payload::from(vec![value; 512]))
    }
}

fn value(command: &Command) -> u8 {
    match command {
        Command::Write { data, .. } => data.to_bytes()[0],
        other => panic!("{other:?}"),
    }
}

async fn here(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

/// What is written reaches the volume, and its status the initiator; a session is reported while it lasts.
#[tokio::test(flavor = "current_thread")]
async fn a_write_reaches_the_volume() {
    here(async {
        let node = Node::start().await;
        let mut client = node.session(1).await;
        assert_eq!(node.export.sessions().len(), 1);
        let task = client.write(7, 42);
        client.flush().await;
        let commands = node.submitted().await;
        assert!(matches!(&commands[..], [(_, Command::Write { extent, .. })] if extent.offset == 7 * 512));
        node.waiting.complete(commands[0].0, Status::Done);
        assert_eq!(client.completed(task).await.status, 0);
        client.core.log_out();
        assert!(matches!(client.next().await, Some(Event::LoggedOut)));
        assert!(client.next().await.is_none());
        node.export.iscsi.stop().await;
        assert!(node.export.sessions().is_empty());
    })
    .await;
}

/// P14 and what tgtd gets wrong (reliability.md section 3): an initiator that logs in again while a write of its old
/// session is with the volume is let in only when that write has settled. So it lands before anything newer.
#[tokio::test(flavor = "current_thread")]
async fn a_new_session_waits_for_the_writes_of_the_old_one() {
    here(async {
        let node = Node::start().await;
        let mut old = node.session(1).await;
        old.write(0, 1);
        old.flush().await;
        let abandoned = node.submitted().await;
        let mut new = node.client(1).await;
        let logged_in = Cell::new(false);
        let log_in = async {
            assert!(matches!(new.next().await, Some(Event::LoggedIn { .. })));
            logged_in.set(true);
        };
        let settle = async {
            // The old connection is closed at once, the new one not answered yet.
            assert!(old.next().await.is_none());
            assert!(!logged_in.get());
            assert_eq!(node.waiting.len(), 1);
            node.waiting.complete(abandoned[0].0, Status::Done);
        };
        tokio::join!(log_in, settle);
        assert!(node.waiting.is_empty());
        let task = new.core.command(0, [0; 16], Direction::None, 0, Payload::new());
        new.completed(task).await;
        new.write(0, 2);
        new.flush().await;
        assert_eq!(value(&node.submitted().await[0].1), 2);
        assert_eq!(node.export.sessions().len(), 1);
    })
    .await;
}

/// RFC 7143 4.2.3.3: a LOGICAL UNIT RESET is answered when the write of another session has settled, which is not
/// answered any more.
#[tokio::test(flavor = "current_thread")]
async fn a_reset_waits_for_other_sessions() {
    here(async {
        let node = Node::start().await;
        let (mut writer, mut resetter) = (node.session(1).await, node.session(2).await);
        writer.write(0, 1);
        writer.flush().await;
        let slow = node.submitted().await;
        resetter.core.manage(ManagementFunction::LogicalUnitReset, 0, None);
        // A ping behind it is answered, the reset is not.
        resetter.core.ping(bytes::Bytes::from_static(b"?"));
        assert!(matches!(resetter.next().await, Some(Event::Pong(_))));
        node.waiting.complete(slow[0].0, Status::Done);
        let answer = resetter.next().await;
        assert!(
            matches!(answer, Some(Event::Managed { answer: ManagementAnswer::Complete, .. })),
            "{answer:?}"
        );
        writer.core.ping(bytes::Bytes::from_static(b"!"));
        assert!(matches!(writer.next().await, Some(Event::Pong(_))));
        let task = writer.core.command(0, [0; 16], Direction::None, 0, Payload::new());
        assert_eq!(writer.completed(task).await.status, 2, "a unit attention tells of the reset");
    })
    .await;
}

/// A node that stops asks for a logout, and is done when the initiator has left.
#[tokio::test(flavor = "current_thread")]
async fn a_stop_asks_initiators_to_leave() {
    here(async {
        let node = Node::start().await;
        let mut client = node.session(1).await;
        let leave = async {
            assert!(matches!(client.next().await, Some(Event::Async(AsyncEvent::LogoutRequest))));
            client.core.log_out();
            assert!(matches!(client.next().await, Some(Event::LoggedOut)));
        };
        tokio::join!(node.export.iscsi.stop(), leave);
        assert!(node.export.sessions().is_empty());
    })
    .await;
}

/// P13 and P11: an initiator that takes nothing any more does not keep its session, nor a newer one, from ending.
#[tokio::test(flavor = "current_thread")]
async fn an_initiator_that_takes_nothing_is_left_behind() {
    here(async {
        let node = Node::start().await;
        let mut deaf = node.session(1).await;
        let mut cdb = [0; 16];
        (cdb[0], cdb[7], cdb[8]) = (0x28, 8, 0);
        for _ in 0..16 {
            deaf.core.command(0, cdb, Direction::Read, SIZE, Payload::new());
        }
        deaf.flush().await;
        let mut reads = 0;
        while reads < 16 {
            for (id, _) in node.submitted().await {
                node.waiting.complete(id, Status::Data(Payload::from(vec![0; SIZE as usize])));
                reads += 1;
            }
        }
        let new = node.session(1).await;
        assert_eq!(node.export.sessions().len(), 1);
        drop((deaf, new));
    })
    .await;
}
