//! The order of commands: CmdSN, and the window in which they are taken (RFC 7143 4.2.2.1).

/// Commands of a session, brought into the order of their CmdSN.
#[derive(Debug)]
pub(super) struct Window<T> {
    expected: u32,
    max: u32,
    /// Numbers that came before their turn. Never more than the window has.
    early: Vec<(u32, Early<T>)>,
}

#[derive(Debug)]
enum Early<T> {
    /// A command that waits for those before it.
    Command(T),
    /// A PDU that was rejected. Its sender may have counted it or not: what comes next shows.
    Rejected,
    /// A task management request has ended a command that never came.
    Aborted,
}

/// What becomes of a command that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival<T> {
    /// Its turn has come.
    Due(T),
    /// It waits, or it is outside the window and is ignored.
    NotDue,
}

impl<T> Window<T> {
    /// A window of `size` commands from `expected` on.
    pub(super) const fn new(expected: u32, size: u32) -> Self {
        Self { expected, max: expected.wrapping_add(size).wrapping_sub(1), early: Vec::new() }
    }

    /// ExpCmdSN.
    pub(super) const fn expected(&self) -> u32 {
        self.expected
    }

    /// MaxCmdSN.
    pub(super) const fn max(&self) -> u32 {
        self.max
    }

    /// Makes room for `free` commands. What was promised before is kept: MaxCmdSN never goes back.
    pub(super) fn open(&mut self, free: u32) {
        let max = self.expected.wrapping_add(free).wrapping_sub(1);
        if max.wrapping_sub(self.max) < HALF {
            self.max = max;
        }
    }

    /// Takes a command. Old ones and ones beyond the window are ignored.
    pub(super) fn arrive(&mut self, cmd_sn: u32, command: T) -> Arrival<T> {
        if !self.contains(cmd_sn) {
            return Arrival::NotDue;
        }
        if cmd_sn == self.expected && self.early.is_empty() {
            self.expected = cmd_sn.wrapping_add(1);
            return Arrival::Due(command);
        }
        match self.place(cmd_sn) {
            Some(at) if matches!(self.early[at].1, Early::Rejected) => {
                self.early.swap_remove(at);
            }
            Some(_) => return Arrival::NotDue,
            None => {}
        }
        self.early.push((cmd_sn, Early::Command(command)));
        self.next().map_or(Arrival::NotDue, Arrival::Due)
    }

    /// The next command whose turn has come. After [`Arrival::Due`] there may be more of them.
    pub(super) fn next(&mut self) -> Option<T> {
        let mut at = self.expected;
        loop {
            let place = self.place(at)?;
            match self.early[place].1 {
                Early::Command(_) => break,
                Early::Rejected => {}
                Early::Aborted => {
                    // This number is settled for good, and so are rejected ones before it.
                    let settled = at;
                    self.early.retain(|(cmd_sn, _)| settled.wrapping_sub(*cmd_sn) >= HALF);
                    self.expected = settled.wrapping_add(1);
                }
            }
            at = at.wrapping_add(1);
        }
        let place = self.place(at)?;
        let (_, command) = self.early.swap_remove(place);
        self.early.retain(|(cmd_sn, _)| at.wrapping_sub(*cmd_sn) >= HALF);
        self.expected = at.wrapping_add(1);
        match command {
            Early::Command(command) => Some(command),
            Early::Rejected | Early::Aborted => None,
        }
    }

    /// Notes that a PDU with this number was rejected.
    pub(super) fn reject(&mut self, cmd_sn: u32) {
        if self.contains(cmd_sn) && self.place(cmd_sn).is_none() {
            self.early.push((cmd_sn, Early::Rejected));
        }
    }

    /// Ends a command that has not had its turn, whether it came or not, and counts it as received (RFC 7143 11.6.1).
    /// Returns whether the number is in the window.
    pub(super) fn abort(&mut self, cmd_sn: u32) -> bool {
        if !self.contains(cmd_sn) {
            return false;
        }
        if let Some(at) = self.place(cmd_sn) {
            self.early.swap_remove(at);
        }
        self.early.push((cmd_sn, Early::Aborted));
        true
    }

    /// The numbers of the commands that wait and that `which` picks.
    pub(super) fn find(&self, which: impl Fn(&T) -> bool) -> Vec<u32> {
        let picked = |early: &(u32, Early<T>)| match &early.1 {
            Early::Command(command) if which(command) => Some(early.0),
            _ => None,
        };
        self.early.iter().filter_map(picked).collect()
    }

    fn contains(&self, cmd_sn: u32) -> bool {
        let size = self.max.wrapping_sub(self.expected).wrapping_add(1);
        cmd_sn.wrapping_sub(self.expected) < size
    }

    fn place(&self, cmd_sn: u32) -> Option<usize> {
        self.early.iter().position(|(early, _)| *early == cmd_sn)
    }
}

/// Numbers less than this far ahead are later, others earlier (RFC 1982).
const HALF: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(window: &mut Window<u32>, cmd_sn: u32) -> Vec<u32> {
        let mut due = Vec::new();
        if let Arrival::Due(first) = window.arrive(cmd_sn, cmd_sn) {
            due.push(first);
            due.extend(std::iter::from_fn(|| window.next()));
        }
        due
    }

    /// RFC 7143 4.2.2.1: in whatever order four commands come, they have their turns in the order of CmdSN, also
    /// where the number wraps round (libiscsi starts anywhere).
    #[test]
    fn commands_have_their_turn_in_order() {
        let start = u32::MAX - 1;
        for order in (0..256_u32).map(|code| [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6]) {
            let mut window = Window::new(start, 4);
            let due: Vec<u32> =
                order.iter().flat_map(|at| arrive(&mut window, start.wrapping_add(*at))).collect();
            let in_order = (0..4)
                .map(|at| start.wrapping_add(at))
                .take_while(|cmd_sn| order.iter().any(|at| start.wrapping_add(*at) == *cmd_sn));
            assert_eq!(due, in_order.collect::<Vec<_>>(), "{order:?}");
        }
    }

    /// target.md recipe 8: what is outside the window is ignored, and the window neither shrinks nor forgets.
    #[test]
    fn outside_the_window_nothing_counts() {
        let mut window = Window::new(10, 2);
        assert_eq!(arrive(&mut window, 9), []);
        assert_eq!(arrive(&mut window, 12), []);
        assert_eq!(arrive(&mut window, 1010), []);
        assert_eq!(arrive(&mut window, 10), [10]);
        assert_eq!(arrive(&mut window, 10), []);
        window.open(0);
        assert_eq!((window.expected(), window.max()), (11, 11));
        assert_eq!(arrive(&mut window, 11), [11]);
        window.open(0);
        assert_eq!(arrive(&mut window, 12), []);
        window.open(1);
        assert_eq!(arrive(&mut window, 12), [12]);
    }

    /// target.md recipe 25: after a Reject the connection lives, whether the initiator counted the PDU or not.
    #[test]
    fn a_rejected_number_may_be_used_or_skipped() {
        let mut window = Window::new(5, 8);
        window.reject(5);
        assert_eq!(arrive(&mut window, 5), [5]);
        window.reject(6);
        assert_eq!(arrive(&mut window, 7), [7]);
        assert_eq!(arrive(&mut window, 6), []);
        window.reject(100);
        assert_eq!(window.expected(), 8);
    }

    /// RFC 7143 11.6.1: an aborted command that never came counts as received, one that comes later is ignored.
    #[test]
    fn an_aborted_number_is_settled() {
        let mut window = Window::new(5, 8);
        assert_eq!(arrive(&mut window, 6), []);
        assert_eq!(window.find(|command| *command == 6), [6]);
        assert!(window.abort(5) && window.abort(6) && !window.abort(13));
        assert_eq!(arrive(&mut window, 5), []);
        assert_eq!(arrive(&mut window, 7), [7]);
        assert_eq!(window.expected(), 8);
    }
}
