//! A link at work: packets from the resource to the socket and from the socket to the resource's mailbox.
//!
//! One gathered write per wake-up takes all that the resource sent in its batch, and one read takes whatever the
//! socket holds.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::{Buf, BytesMut};
use ops::metrics::Latencies;
use replication::{
    Input, LinkId, NodeId, Packet,
    wire::{CloseReason, DecodeError, Decoder, Frame, Output},
};
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Options,
    unanswered::{Request, Unanswered},
};
use crate::volume::Mailbox;

/// Why a link ended.
#[derive(Debug, Error)]
pub enum Ended {
    /// This node closed it.
    #[error("closed here: {0}")]
    Here(CloseReason),
    /// The peer closed it and said why.
    #[error("closed by the peer: {0}")]
    There(CloseReason),
    /// The peer closed it without a word.
    #[error("the peer closed the connection")]
    Eof,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer sent what is no frame.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The peer said at a wrong time that a connection becomes a link.
    #[error("the peer opened the link again")]
    Opened,
    /// The peer gave no sign of life.
    #[error("no sign of life for {} ms", silence.as_millis())]
    Silent {
        /// Since the last one.
        silence: Duration,
    },
    /// The peer takes nothing of what is queued.
    #[error("the peer took none of {queued_bytes} bytes for {} ms", stalled.as_millis())]
    Stuck {
        /// In bytes.
        queued_bytes: usize,
        /// Since it last took some.
        stalled: Duration,
    },
    /// The peer answers, but not this.
    #[error("{request} is unanswered for {} ms", waited.as_millis())]
    Late {
        /// What.
        request: Request,
        /// Since it was sent.
        waited: Duration,
    },
    /// The queue is full.
    #[error("{queued_bytes} bytes are queued for the peer, more than {queue_bytes_max}")]
    Overflow {
        /// In bytes.
        queued_bytes: usize,
        /// The bound, in bytes.
        queue_bytes_max: usize,
    },
}

/// What the resource's task, the link's own task and the one that decides about it share. All run on one thread.
#[derive(Debug)]
pub struct Link {
    id: LinkId,
    peer: NodeId,
    options: Options,
    latencies: Arc<Latencies>,
    output: RefCell<Output>,
    unanswered: RefCell<Unanswered>,
    filled: Notify,
    /// When bytes came from the peer for the last time.
    heard: Cell<Instant>,
    /// When the full socket took bytes again, so that the peer's end must have taken some, for the last time.
    drained: Cell<Instant>,
    /// When the queue got shorter, or stopped being empty, for the last time.
    moved: Cell<Instant>,
    pings: Cell<u64>,
    pongs: Cell<u64>,
    ponged: Notify,
    end: RefCell<Option<Ended>>,
    ending: Notify,
}

impl Link {
    /// A new link, with a name that the process never used before. How long the peer takes goes to `latencies`.
    #[must_use]
    pub fn new(peer: NodeId, options: Options, latencies: Arc<Latencies>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let now = Instant::now();
        Self {
            id: LinkId(NEXT.fetch_add(1, Ordering::Relaxed)),
            peer,
            options,
            latencies,
            output: RefCell::default(),
            unanswered: RefCell::default(),
            filled: Notify::new(),
            heard: Cell::new(now),
            drained: Cell::new(now),
            moved: Cell::new(now),
            pings: Cell::new(0),
            pongs: Cell::new(0),
            ponged: Notify::new(),
            end: RefCell::default(),
            ending: Notify::new(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn id(&self) -> LinkId {
        self.id
    }

    /// Queues a frame. The link ends when its queue is over its bound.
    pub fn push(&self, frame: Frame) {
        let mut output = self.output.borrow_mut();
        let now = Instant::now();
        if output.is_empty() {
            self.moved.set(now);
            self.filled.notify_one();
        }
        if let Frame::Packet(packet) = &frame {
            self.unanswered.borrow_mut().sent(packet, now);
        }
        output.push(frame);
        let (queued_bytes, queue_bytes_max) = (output.len(), self.options.queue_bytes_max);
        if queued_bytes > queue_bytes_max {
            self.finish(Ended::Overflow { queued_bytes, queue_bytes_max });
        }
    }

    /// Whether the queue is so long that it should not grow.
    #[must_use]
    pub fn congested(&self) -> bool {
        self.output.borrow().len() >= self.options.congested_bytes
    }

    /// Asks for a sign of life and returns the number that it will have.
    pub fn ping(&self) -> u64 {
        let number = self.pings.get() + 1;
        self.pings.set(number);
        self.push(Frame::Ping(number));
        number
    }

    /// Waits until the peer has answered a ping.
    pub async fn answered(&self, ping: u64) {
        loop {
            let ponged = self.ponged.notified();
            if self.pongs.get() >= ping {
                return;
            }
            ponged.await;
        }
    }

    /// Takes what is queued away, to be sent by [`close`].
    #[must_use]
    pub fn take_output(&self) -> Output {
        self.output.take()
    }

    /// Takes note of a packet that came.
    fn received(&self, packet: &Packet) {
        let timed = self.unanswered.borrow_mut().received(packet);
        if let (Some((operation, since)), Some(leg)) = (timed, self.latencies.peer(self.peer)) {
            leg.record(operation, since.elapsed());
        }
    }

    /// Ends the link, for the first reason given.
    pub fn finish(&self, ended: Ended) {
        self.end.borrow_mut().get_or_insert(ended);
        self.ending.notify_one();
    }

    async fn finished(&self) -> Ended {
        loop {
            if let Some(ended) = self.end.borrow_mut().take() {
                return ended;
            }
            self.ending.notified().await;
        }
    }

    /// What the peer should have done by now.
    fn overdue(&self, now: Instant) -> Option<Ended> {
        let Options { timeout, answer_timeout, .. } = self.options;
        let (queued_bytes, stalled) = (self.output.borrow().len(), now - self.moved.get());
        if queued_bytes > 0 && stalled >= timeout {
            return Some(Ended::Stuck { queued_bytes, stalled });
        }
        let (request, since) = self.unanswered.borrow().oldest()?;
        let waited = now - since;
        (waited >= answer_timeout).then_some(Ended::Late { request, waited })
    }

    /// How long the peer has given no sign of life.
    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard.get().max(self.drained.get()))
    }
}

/// A link's connection.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub stream: TcpStream,
    /// What was received already.
    pub received: BytesMut,
    /// The link's end for the other tasks.
    pub link: Rc<Link>,
    /// Where packets go.
    pub mailbox: Rc<Mailbox>,
}

impl Connection {
    /// Moves packets until the link ends, and gives the socket back. No packet comes from it afterwards.
    pub async fn run(mut self) -> (Ended, TcpStream) {
        let (link, mailbox) = (&*self.link, &*self.mailbox);
        let (mut reader, mut writer) = self.stream.split();
        let ended = tokio::select! {
            // What came in is looked at before the clock: a process that was stopped for a while finds both.
            biased;
            ended = link.finished() => ended,
            Err(ended) = read(&mut reader, &mut self.received, link, mailbox) => ended,
            Err(ended) = write(&mut writer, link, mailbox) => ended,
            ended = watch(link) => ended,
        };
        (ended, self.stream)
    }
}

/// Says good-bye on a connection: sends what is queued and the reason, and waits, not for long, until the peer
/// has it.
pub async fn close(mut stream: TcpStream, mut output: Output, reason: CloseReason) {
    output.push(Frame::Close(reason));
    let goodbye = async {
        stream.write_all_buf(&mut output).await?;
        stream.shutdown().await?;
        // Unread bytes would turn the end of the stream into a reset, which overtakes what was sent.
        let mut rest = BytesMut::with_capacity(READ_ROOM_MIN);
        while stream.read_buf(&mut rest).await? > 0 {
            rest.clear();
        }
        io::Result::Ok(())
    };
    // Whether the peer is still there to hear it does not matter any more.
    let _ = timeout(CLOSE_LIMIT, goodbye).await;
}

async fn read(
    reader: &mut ReadHalf<'_>,
    received: &mut BytesMut,
    link: &Link,
    mailbox: &Mailbox,
) -> Result<Infallible, Ended> {
    let decoder = Decoder::default();
    loop {
        while let Some(frame) = decoder.next(received)? {
            match frame {
                Frame::Packet(packet) => {
                    link.received(&packet);
                    mailbox.push(Input::Packet { peer: link.peer, link: link.id, packet });
                }
                Frame::Ping(number) => link.push(Frame::Pong(number)),
                Frame::Pong(number) => {
                    link.pongs.set(number.max(link.pongs.get()));
                    link.ponged.notify_waiters();
                }
                Frame::Close(reason) => return Err(Ended::There(reason)),
                Frame::Ready | Frame::Open => return Err(Ended::Opened),
            }
        }
        step_aside().await;
        make_room(received);
        if reader.read_buf(received).await? == 0 {
            return Err(Ended::Eof);
        }
        link.heard.set(Instant::now());
    }
}

/// Lets the tasks that are ready run, the resource's among them, before more is read: that bounds its mailbox.
async fn step_aside() {
    let mut aside = false;
    poll_fn(|context| {
        if aside {
            return Poll::Ready(());
        }
        aside = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Makes room for a read. Where payloads still hold the buffer, a new one takes its place.
fn make_room(received: &mut BytesMut) {
    if received.capacity() - received.len() >= READ_ROOM_MIN || received.try_reclaim(READ_ROOM_MIN) {
        return;
    }
    let mut fresh = BytesMut::with_capacity(BUFFER_LEN.max(received.len() + READ_ROOM_MIN));
    fresh.extend_from_slice(received);
    *received = fresh;
}

async fn write(writer: &mut WriteHalf<'_>, link: &Link, mailbox: &Mailbox) -> Result<Infallible, Ended> {
    let mut packets = 0;
    loop {
        while link.output.borrow().is_empty() {
            link.filled.notified().await;
        }
        let mut blocked = false;
        poll_fn(|context| {
            let mut output = link.output.borrow_mut();
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let filled = output.chunks_vectored(&mut slices);
            let written = Pin::new(&mut *writer).poll_write_vectored(context, &slices[..filled]);
            blocked |= written.is_pending();
            written.map_ok(|count| output.advance(count))
        })
        .await?;
        let now = Instant::now();
        link.moved.set(now);
        if blocked {
            link.drained.set(now);
        }
        let taken = link.output.borrow().packets_taken();
        if taken > packets {
            packets = taken;
            mailbox.push(Input::Sent { peer: link.peer, link: link.id, packets });
        }
    }
}

/// Waits until the peer gives no sign of life, takes nothing, or does not answer.
async fn watch(link: &Link) -> Ended {
    loop {
        let Options { ping_interval, ping_timeout, timeout, .. } = link.options;
        let now = Instant::now();
        if let Some(ended) = link.overdue(now) {
            return ended;
        }
        let quiet = link.silence(now);
        if quiet < ping_interval {
            sleep_until(now + ping_interval.saturating_sub(quiet).min(timeout / 4)).await;
            continue;
        }
        let ping = link.ping();
        tokio::select! {
            biased;
            () = link.answered(ping) => {}
            () = sleep_until(now + ping_timeout) => {
                let silence = link.silence(Instant::now());
                if silence >= ping_timeout {
                    return Ended::Silent { silence };
                }
            }
        }
    }
}

/// The receive buffer, in bytes.
const BUFFER_LEN: usize = 256 << 10;
/// The least room for a read, in bytes.
const READ_ROOM_MIN: usize = 64 << 10;
/// The pieces of one gathered write. A write of 4 KiB and its header are two.
const SLICES_MAX: usize = 256;
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
