//! One iSCSI connection on the shard of its target's resource.
//!
//! Each turn of the loop reads what the socket holds, decodes every PDU in it, starts or submits every command, takes
//! every status that has come meanwhile, and sends every reply in one gathered write.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{CommandId, Status, VolumeNumber};
use bytes::BytesMut;
use ops::metrics::{Counted, Counters};
use target_proto::iscsi::TaskId;
use target_proto::iscsi::connection::{Close, Connection, DiscoveredTarget, Effect, Execute, Host, Manage};
use target_proto::iscsi::login::{Identity, Ready};
use target_proto::iscsi::pdu::{
    Header, LoginStatus, ManagementAnswer, ManagementFunction, Output, RejectReason,
};
use target_proto::scsi::{
    Continuation, InitiatorPort, NexusId, Request, Reset, Response, ScsiStatus, Step, Target, Transfer,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use super::catalog::{self, Catalog};
use super::discovery::discovered;
use super::listener::{Accepted, send};
use super::sessions::{Name, NoSeat, Note, Seat, Settling};
use crate::quota::{Quota, Verdict};
use crate::volume::{Completions, Export, SessionReport};

/// Serves a session until it ends.
pub async fn serve(export: Rc<Export>, accepted: Accepted, counters: Arc<Counters>) {
    let address = accepted.address;
    match begin(export, accepted, counters).await {
        Ok(Some((session, stream))) => session.run(stream).await,
        Ok(None) => {}
        Err(error) => debug!(%address, %error, "the connection broke before the session began"),
    }
}

/// Makes room for the session, and answers its login.
async fn begin(
    export: Rc<Export>,
    accepted: Accepted,
    counters: Arc<Counters>,
) -> io::Result<Option<(Session, TcpStream)>> {
    let Accepted { stream, address, portal, ready, received, catalog } = accepted;
    let mut stream = TcpStream::from_std(stream)?;
    let Identity { initiator, isid, .. } = ready.identity().clone();
    let (seat, free) = match export.iscsi.take(Name { initiator: initiator.clone(), isid }) {
        Ok(taken) => taken,
        Err(no_seat) => {
            refuse(ready, no_seat, &mut stream, address).await?;
            return Ok(None);
        }
    };
    // Promise P14: see `sessions`.
    free.await;
    let mut output = Output::new();
    let tsih = tsih(seat.nexus);
    let established = ready.accept(tsih, &mut output);
    let port = InitiatorPort { iqn: initiator.clone(), isid: isid.0 };
    export.target.borrow_mut().open_nexus(seat.nexus, &port);
    let report =
        SessionReport { initiator: initiator.clone(), transport: "iscsi", address: address.to_string() };
    export.opened(seat.nexus, report);
    let target = export.target.borrow().identity().iqn.clone();
    let listed = catalog::Session { target, initiator, isid, tsih };
    catalog.opened(listed.clone());
    let started = Instant::now();
    let connection = Connection::new(established, output, Duration::ZERO);
    let session = Session {
        started,
        connection,
        received,
        effects: Vec::new(),
        completions: Rc::default(),
        in_hand: Vec::new(),
        settling: Vec::new(),
        leave_at: None,
        quota: Quota::default(),
        counters,
        view: View { export, catalog, portal },
        address,
        listed,
        seat,
    };
    Ok(Some((session, stream)))
}

/// Refuses a login for a target whose resource does not run here.
pub async fn turn_away(accepted: Accepted) {
    let Accepted { stream, address, ready, .. } = accepted;
    let refused = async {
        let mut stream = TcpStream::from_std(stream)?;
        refuse(ready, NoSeat::Stopping, &mut stream, address).await
    };
    if let Err(error) = refused.await {
        debug!(%address, %error, "the connection broke before it was refused");
    }
}

async fn refuse(
    ready: Ready,
    no_seat: NoSeat,
    stream: &mut TcpStream,
    address: SocketAddr,
) -> io::Result<()> {
    let status = match no_seat {
        NoSeat::Stopping => LoginStatus::UNAVAILABLE,
        NoSeat::Full => LoginStatus::OUT_OF_RESOURCES,
    };
    let mut output = Output::new();
    let error = ready.refuse(status, &mut output);
    warn!(%address, %error, "iSCSI login refused");
    send(stream, &mut output).await
}

/// The target's part of a session identifier: not 0, and different for sessions that follow each other.
fn tsih(nexus: NexusId) -> u16 {
    u16::try_from(nexus.0 % u64::from(u16::MAX)).map_or(1, |tsih| tsih + 1)
}

/// A session.
struct Session {
    started: Instant,
    connection: Connection,
    received: BytesMut,
    effects: Vec<Effect>,
    completions: Rc<Completions>,
    /// By the number of a task.
    in_hand: Vec<InHand>,
    /// Who waits for the aborted tasks of this session.
    settling: Vec<Rc<Settling>>,
    /// When the connection is dropped, whatever still waits to be sent.
    leave_at: Option<Instant>,
    quota: Quota,
    counters: Arc<Counters>,
    view: View,
    address: SocketAddr,
    listed: catalog::Session,
    seat: Seat,
}

/// A task that is with the SCSI side or with the volume.
#[derive(Debug, Default)]
struct InHand {
    then: Option<Continuation>,
    /// The command that is with the volume.
    command: Option<CommandId>,
    aborted: bool,
}

/// What a connection asks while it takes PDUs.
struct View {
    export: Rc<Export>,
    catalog: Arc<Catalog>,
    portal: SocketAddr,
}

impl View {
    fn target(&self) -> &RefCell<Target> {
        &self.export.target
    }
}

impl Host for View {
    fn transfer(&self, lun: u64, cdb: &[u8; 16]) -> Transfer {
        self.target().borrow().transfer(lun, cdb)
    }

    fn volume(&self, lun: u64) -> Option<VolumeNumber> {
        self.target().borrow().volume(lun)
    }

    fn targets(&self, initiator: &str) -> Vec<DiscoveredTarget> {
        discovered(&self.catalog, initiator, self.portal)
    }
}

impl Session {
    /// Serves until both the connection is closed and every task has settled.
    async fn run(mut self, mut stream: TcpStream) {
        let ended = self.exchange(&mut stream).await;
        drop(stream);
        if let Err(error) = ended {
            debug!(address = %self.address, %error, "connection broke");
        }
        self.connection.end(&mut self.effects);
        self.carry_out();
        let (completions, inbox) = (Rc::clone(&self.completions), Rc::clone(&self.seat.inbox));
        let (mut statuses, mut notes) = (Vec::new(), Vec::new());
        while self.connection.tasks() > 0 {
            tokio::select! {
                () = completions.take(&mut statuses) => self.complete(&mut statuses),
                () = inbox.take(&mut notes) => self.heed(&mut notes),
            }
        }
        info!(address = %self.address, initiator = self.listed.initiator, "session ended");
    }

    /// Carries bytes, statuses and notes to and fro until the connection is closed.
    async fn exchange(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        let (mut reader, writer) = stream.split();
        let completions = Rc::clone(&self.completions);
        let inbox = Rc::clone(&self.seat.inbox);
        let (mut statuses, mut notes) = (Vec::new(), Vec::new());
        let mut clock = interval(TICK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.receive();
        loop {
            let blocked = !flush(&writer, self.connection.output())?;
            let late = self.leave_at.is_some_and(|leave_at| Instant::now() >= leave_at);
            if late || self.connection.is_closed() && !blocked {
                return Ok(());
            }
            let open = !self.connection.is_closed() && self.connection.output().len() < OUTPUT_MAX;
            tokio::select! {
                biased;
                () = inbox.take(&mut notes) => self.heed(&mut notes),
                _ = clock.tick() => {
                    self.connection.tick(self.started.elapsed(), &mut self.effects);
                    self.carry_out();
                }
                () = completions.take(&mut statuses) => self.complete(&mut statuses),
                read = read(&mut reader, &mut self.received), if open => {
                    if read? == 0 {
                        return Ok(());
                    }
                    self.receive();
                    // What has ended meanwhile leaves in the same write.
                    completions.take_now(&mut statuses);
                    self.complete(&mut statuses);
                }
                ready = writer.writable(), if blocked => ready?,
            }
            if !self.settling.is_empty() && self.connection.aborting() == 0 {
                self.settling.clear();
            }
        }
    }

    fn receive(&mut self) {
        let now = self.started.elapsed();
        self.connection.receive(now, &mut self.received, &self.view, &mut self.effects);
        self.carry_out();
    }

    /// Takes statuses of commands that were submitted.
    fn complete(&mut self, statuses: &mut Vec<(u64, Status)>) {
        for (tag, status) in statuses.drain(..) {
            let task = TaskId(u16::try_from(tag).expect("the tag is the number of a task"));
            let in_hand = &mut self.in_hand[usize::from(task.0)];
            in_hand.command = None;
            let then = in_hand.then.take().expect("a command is submitted with what resumes it");
            if in_hand.aborted {
                // What is left of an aborted command is not done.
                self.done(task, &Response::status(ScsiStatus::TaskAborted));
            } else {
                let step = self.view.target().borrow_mut().resume(then, status);
                self.step(task, step);
            }
        }
        self.carry_out();
    }

    /// Does what the connection wants, and what follows from it.
    fn carry_out(&mut self) {
        while !self.effects.is_empty() {
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Execute(execute) => self.execute(execute),
                    Effect::Abort(task) => self.abort(task),
                    Effect::Manage(manage) => self.manage(manage),
                    Effect::Rejected(reason, header) => self.log_reject(reason, header),
                    Effect::Close(reason) => self.close(reason),
                }
            }
            if self.effects.is_empty() {
                self.effects = effects;
                return;
            }
        }
    }

    /// What a task waits for ends at once: a volume without quorum would keep it for ever.
    fn abort(&mut self, task: TaskId) {
        let completions = Rc::clone(&self.completions);
        let in_hand = self.in_hand(task);
        in_hand.aborted = true;
        if let Some(command) = in_hand.command {
            self.view.export.volume.abort(command, &completions, u64::from(task.0));
        }
    }

    fn execute(&mut self, execute: Execute) {
        let Execute { task, lun, cdb, data_out, data_out_expected } = execute;
        *self.in_hand(task) = InHand::default();
        let nexus = self.seat.nexus;
        let request = Request { nexus, lun, cdb: &cdb, data_out, data_out_expected };
        // Initiators learn of a unit attention by their next command.
        let step = self.view.target().borrow_mut().start(request, &mut Vec::new());
        self.step(task, step);
    }

    fn step(&mut self, task: TaskId, step: Step) {
        let tag = u64::from(task.0);
        let completions = Rc::clone(&self.completions);
        match step {
            Step::Done(response) => self.done(task, &response),
            Step::Submit { volume, command, then } => {
                let command = self.view.export.volume.submit(volume, command, &completions, tag);
                let in_hand = self.in_hand(task);
                (in_hand.then, in_hand.command) = (Some(then), Some(command));
            }
            Step::Persist { volume, registry, then } => {
                self.in_hand(task).then = Some(then);
                self.view.export.volume.store(volume, registry, &completions, tag);
            }
            Step::Abort { volume, nexuses, then } => {
                self.in_hand(task).then = Some(then);
                let settling = Settling::then(&self.seat.inbox, Note::Aborted(tag));
                let note = || Note::Abort(Some(volume), Rc::clone(&settling));
                self.view.export.iscsi.tell(self.seat.nexus, Some(&nexuses), note);
                if nexuses.contains(&self.seat.nexus) {
                    self.connection.abort_others(volume, task, &mut self.effects);
                    self.settling.push(settling);
                }
            }
        }
    }

    fn done(&mut self, task: TaskId, response: &Response) {
        self.connection.complete(task, response, &mut self.effects);
    }

    fn in_hand(&mut self, task: TaskId) -> &mut InHand {
        let place = usize::from(task.0);
        if self.in_hand.len() <= place {
            self.in_hand.resize_with(place + 1, InHand::default);
        }
        &mut self.in_hand[place]
    }

    /// Carries out a reset or CLEAR TASK SET, whose answer waits for the tasks of all sessions.
    fn manage(&mut self, manage: Manage) {
        let Manage { request, function, lun } = manage;
        let target = self.view.target();
        let reset = match function {
            ManagementFunction::TargetWarmReset | ManagementFunction::TargetColdReset => Some(Reset::Target),
            ManagementFunction::LogicalUnitReset => Some(Reset::Unit(lun)),
            _ => None,
        };
        let existing = match reset {
            Some(reset) => target.borrow_mut().reset(reset, &mut Vec::new()).is_ok(),
            None => target.borrow().volume(lun).is_some(),
        };
        if !existing {
            self.connection.managed(request, ManagementAnswer::NoLun, &mut self.effects);
            return;
        }
        info!(address = %self.address, initiator = self.listed.initiator, ?function, "task management");
        let volume = match reset {
            Some(Reset::Target) => None,
            _ => target.borrow().volume(lun),
        };
        let settling = Settling::then(&self.seat.inbox, Note::Managed(request, ManagementAnswer::Complete));
        self.view.export.iscsi.tell(self.seat.nexus, None, || match function {
            ManagementFunction::TargetColdReset => Note::End(Rc::clone(&settling)),
            ManagementFunction::ClearTaskSet if let Some(volume) = volume => {
                Note::Clear(volume, Rc::clone(&settling))
            }
            _ => Note::Abort(volume, Rc::clone(&settling)),
        });
    }

    /// Does what others want.
    fn heed(&mut self, notes: &mut Vec<Note>) {
        for note in notes.drain(..) {
            match note {
                Note::End(settling) => {
                    self.settling.push(settling);
                    self.connection.end(&mut self.effects);
                    // The initiator has left this connection behind: it may never take what waits.
                    self.leave_within(Duration::ZERO);
                }
                Note::Abort(volume, settling) => {
                    self.settling.push(settling);
                    self.connection.abort(volume, &mut self.effects);
                }
                Note::Clear(volume, settling) => {
                    if self.connection.tasks() > 0 {
                        let mut target = self.view.target().borrow_mut();
                        target.commands_cleared(self.seat.nexus, volume, &mut Vec::new());
                    }
                    self.settling.push(settling);
                    self.connection.abort(Some(volume), &mut self.effects);
                }
                Note::Managed(request, answer) => {
                    self.connection.managed(request, answer, &mut self.effects);
                }
                Note::Aborted(tag) => self.completions.push((tag, Status::Done)),
                Note::Stop => {
                    self.leave_within(LEAVE_TIME);
                    self.connection.request_logout(LEAVE_SECONDS);
                }
            }
        }
        self.carry_out();
    }

    fn log_reject(&mut self, reason: RejectReason, header: Header) {
        if let Verdict::Log { left_out } = self.quota.ask(Instant::now()) {
            let initiator = &self.listed.initiator;
            warn!(address = %self.address, initiator, ?reason, ?header, left_out, "rejected a PDU");
        }
    }

    fn leave_within(&mut self, time: Duration) {
        let leave_at = Instant::now() + time;
        self.leave_at = Some(self.leave_at.map_or(leave_at, |earlier| earlier.min(leave_at)));
    }

    fn close(&mut self, reason: Close) {
        self.leave_within(LEAVE_TIME);
        if matches!(reason, Close::Decode(_)) {
            self.counters.add(Counted::InitiatorError);
        }
        let initiator = &self.listed.initiator;
        match reason {
            Close::Logout | Close::ColdReset => {
                debug!(address = %self.address, initiator, %reason, "closing");
            }
            _ => warn!(address = %self.address, initiator, %reason, "closing"),
        }
    }
}

impl Drop for Session {
    /// The name is free only behind this: the seat is dropped last.
    fn drop(&mut self) {
        let nexus = self.seat.nexus;
        self.view.export.target.borrow_mut().close_nexus(nexus);
        self.view.export.closed(nexus);
        self.view.catalog.closed(&self.listed);
    }
}

/// Reads what the socket holds. A buffer that one read filled is followed by a larger one.
async fn read(reader: &mut ReadHalf<'_>, received: &mut BytesMut) -> io::Result<usize> {
    if received.capacity() - received.len() < READ_MIN {
        let len = if received.capacity() < BUFFER_MIN { BUFFER_MIN } else { BUFFER_MAX };
        received.reserve(len);
    }
    reader.read_buf(received).await
}

/// Sends what waits, as far as the socket takes it. Returns whether it took everything.
fn flush(writer: &WriteHalf<'_>, output: &mut Output) -> io::Result<bool> {
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let filled = output.slices(&mut slices);
        match writer.try_write_vectored(&slices[..filled]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => output.advance(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// How often time passes for a connection.
const TICK: Duration = Duration::from_secs(1);
/// How long an initiator may take to log out when the node stops, or to take the last bytes.
const LEAVE_TIME: Duration = Duration::from_secs(LEAVE_SECONDS as u64);
const LEAVE_SECONDS: u16 = 3;
/// Nothing is read while more than this waits to be sent, in bytes.
const OUTPUT_MAX: usize = 4 << 20;
/// Buffers for what is received, in bytes.
const BUFFER_MIN: usize = 64 << 10;
const BUFFER_MAX: usize = 1 << 20;
/// A buffer with less room than this is followed by the next, in bytes.
const READ_MIN: usize = 4 << 10;
/// The parts of one gathered write.
const SLICES_MAX: usize = 128;

#[cfg(test)]
mod tests;
