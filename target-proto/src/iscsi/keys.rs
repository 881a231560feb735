//! Every key of RFC 7143 chapter 13, with its result function and its phase, in one table.

use super::pdu::Digests;
use super::text::{Answer, Pair, number};

/// What the two sides of a session agree on (RFC 7143 chapter 13). Until a key is negotiated its default counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// HeaderDigest and DataDigest.
    pub digests: Digests,
    /// The longest data segment that the other side takes, in bytes.
    pub peer_data_segment_max: u32,
    /// InitialR2T: no unsolicited Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData: commands may carry data.
    pub immediate_data: bool,
    /// MaxBurstLength, in bytes.
    pub burst_max: u32,
    /// FirstBurstLength, in bytes.
    pub first_burst_max: u32,
    /// MaxOutstandingR2T, per task.
    pub r2t_max: u32,
    /// DefaultTime2Wait, in seconds.
    pub time2wait: u32,
    /// DefaultTime2Retain, in seconds.
    pub time2retain: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            peer_data_segment_max: DEFAULT_DATA_SEGMENT,
            initial_r2t: true,
            immediate_data: true,
            burst_max: 262_144,
            first_burst_max: 65_536,
            r2t_max: 1,
            time2wait: 2,
            time2retain: 20,
        }
    }
}

impl Parameters {
    /// The most unsolicited data of one command, in bytes: FirstBurstLength never exceeds MaxBurstLength.
    #[must_use]
    pub fn unsolicited_max(&self) -> u32 {
        self.first_burst_max.min(self.burst_max)
    }
}

/// A key that means something to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// AuthMethod
    AuthMethod,
    /// CHAP_A, CHAP_I, CHAP_C, CHAP_N, CHAP_R
    Chap,
    /// InitiatorName
    InitiatorName,
    /// TargetName
    TargetName,
    /// SessionType
    SessionType,
    /// SendTargets
    SendTargets,
    /// A key that parameters follow from, or that is only taken note of.
    Parameter,
}

/// When a key may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In the security stage of a login.
    Security,
    /// In the first text of a login.
    Leading,
    /// In the operational stage of a login.
    Operational,
    /// In either stage of a login.
    Login,
    /// In the full feature phase.
    FullFeature,
    /// At any time.
    Any,
    /// By a target only.
    Never,
}

/// How the result comes from what both sides say (RFC 7143 6.2).
#[derive(Clone, Copy)]
pub enum Function {
    /// Each side says what holds for itself; no answer.
    Declare,
    /// The smaller number of both.
    Minimum(Range),
    /// The larger number of both.
    Maximum(Range),
    /// Yes if both say so.
    And(bool),
    /// Yes if one says so.
    Or(bool),
    /// The first of the initiator's that we know.
    List(&'static [&'static str]),
    /// The answer is always this.
    Constant(&'static str),
    /// What decides is elsewhere: in the login or in the security negotiation.
    Elsewhere,
}

/// The numbers a key can have.
#[derive(Clone, Copy)]
pub struct Range {
    /// What we want.
    pub ours: u32,
    /// The least that the standard allows.
    pub lowest: u32,
    /// The most that the standard allows.
    pub highest: u32,
}

/// One key.
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub key: Key,
    /// When it may be sent.
    pub phase: Phase,
    /// How its result is found.
    pub function: Function,
    /// Whether it means something in a discovery session; elsewhere it is irrelevant there.
    pub discovery: bool,
    /// The longest value, in bytes.
    pub value_max: usize,
    /// Where the result goes.
    store: fn(&mut Parameters, u32),
}

/// The row of a key, and its place in the table.
#[must_use]
pub fn find(name: &str) -> Option<(usize, &'static Row)> {
    TABLE.iter().enumerate().find(|(_, row)| row.name == name)
}

impl Row {
    /// Settles what a pair offers, and answers. A value that the key cannot have is answered with Reject.
    pub fn negotiate(
        &self,
        pair: &Pair<'_>,
        discovery: bool,
        parameters: &mut Parameters,
        answer: &mut Answer,
    ) {
        if discovery && !self.discovery {
            answer.put(self.name, "Irrelevant");
            return;
        }
        let result = match self.function {
            Function::Elsewhere => return,
            Function::Constant(value) => Some((value.to_owned(), 0)),
            Function::Declare => match number(pair.value).and_then(|value| u32::try_from(value).ok()) {
                Some(value) if (512..=LENGTH_MAX).contains(&value) => {
                    (self.store)(parameters, value);
                    return;
                }
                _ => None,
            },
            Function::Minimum(Range { ours, lowest, highest }) => {
                in_range(pair.value, lowest, highest).map(|theirs| plain(ours.min(theirs)))
            }
            Function::Maximum(Range { ours, lowest, highest }) => {
                in_range(pair.value, lowest, highest).map(|theirs| plain(ours.max(theirs)))
            }
            Function::And(ours) => yes(pair.value).map(|theirs| yes_or_no(ours && theirs)),
            Function::Or(ours) => yes(pair.value).map(|theirs| yes_or_no(ours || theirs)),
            Function::List(ours) => {
                let place = |theirs: &str| ours.iter().position(|&our| our == theirs);
                let chosen = pair.value.split(',').find_map(place);
                chosen.map(|place| (ours[place].to_owned(), u32::try_from(place).unwrap_or_default()))
            }
        };
        let Some((value, number)) = result else {
            answer.put(self.name, "Reject");
            return;
        };
        (self.store)(parameters, number);
        answer.put(self.name, &value);
    }
}

fn in_range(value: &str, lowest: u32, highest: u32) -> Option<u32> {
    let value = u32::try_from(number(value)?).ok()?;
    (lowest..=highest).contains(&value).then_some(value)
}

fn plain(number: u32) -> (String, u32) {
    (number.to_string(), number)
}

fn yes(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

fn yes_or_no(yes: bool) -> (String, u32) {
    (if yes { "Yes" } else { "No" }.to_owned(), u32::from(yes))
}

/// The data segment that each side takes before it says otherwise, and in every login (RFC 7143 13.12), in bytes.
pub const DEFAULT_DATA_SEGMENT: u32 = 8192;
/// The data segment that we take after the login, in bytes.
pub const DATA_SEGMENT_MAX: u32 = 262_144;
/// The longest length that a key can name, in bytes.
const LENGTH_MAX: u32 = 0x00ff_ffff;
const DIGESTS: Function = Function::List(&["None", "CRC32C"]);
const VALUE_MAX: usize = 255;
/// A challenge or response of 1024 bytes, written in hexadecimal.
const CHAP_VALUE_MAX: usize = 2 + 2 * 1024;

const NOWHERE: fn(&mut Parameters, u32) = |_, _| {};

/// A row that has no parameter of its own.
const fn row(name: &'static str, key: Key, phase: Phase, function: Function) -> Row {
    Row { name, key, phase, function, discovery: true, value_max: VALUE_MAX, store: NOWHERE }
}

/// A row of the operational stage.
const fn operational(
    name: &'static str,
    function: Function,
    discovery: bool,
    store: fn(&mut Parameters, u32),
) -> Row {
    let key = Key::Parameter;
    Row { name, key, phase: Phase::Operational, function, discovery, value_max: VALUE_MAX, store }
}

const fn chap(name: &'static str) -> Row {
    let row = row(name, Key::Chap, Phase::Security, Function::Elsewhere);
    Row { value_max: CHAP_VALUE_MAX, ..row }
}

const fn minimum(ours: u32, lowest: u32, highest: u32) -> Function {
    Function::Minimum(Range { ours, lowest, highest })
}

const fn maximum(ours: u32, lowest: u32, highest: u32) -> Function {
    Function::Maximum(Range { ours, lowest, highest })
}

const fn length(ours: u32) -> Function {
    minimum(ours, 512, LENGTH_MAX)
}

/// How many keys there are.
pub const TABLE_LEN: usize = 34;

/// The keys. A target that may not be asked for something answers it before it is needed: MaxBurstLength stands
/// before FirstBurstLength, and pairs are settled in the order of the table.
pub static TABLE: [Row; TABLE_LEN] = [
    row("InitiatorName", Key::InitiatorName, Phase::Leading, Function::Elsewhere),
    row("InitiatorAlias", Key::Parameter, Phase::Any, Function::Elsewhere),
    row("SessionType", Key::SessionType, Phase::Leading, Function::Elsewhere),
    row("TargetName", Key::TargetName, Phase::Leading, Function::Elsewhere),
    row("TargetAlias", Key::Parameter, Phase::Never, Function::Elsewhere),
    row("TargetAddress", Key::Parameter, Phase::Never, Function::Elsewhere),
    row("TargetPortalGroupTag", Key::Parameter, Phase::Never, Function::Elsewhere),
    row("AuthMethod", Key::AuthMethod, Phase::Security, Function::Elsewhere),
    chap("CHAP_A"),
    chap("CHAP_I"),
    chap("CHAP_C"),
    chap("CHAP_N"),
    chap("CHAP_R"),
    row("SendTargets", Key::SendTargets, Phase::FullFeature, Function::Elsewhere),
    operational("HeaderDigest", DIGESTS, true, |all, choice| all.digests.header = choice == 1),
    operational("DataDigest", DIGESTS, true, |all, choice| all.digests.data = choice == 1),
    Row {
        name: "MaxRecvDataSegmentLength",
        key: Key::Parameter,
        phase: Phase::Any,
        function: Function::Declare,
        discovery: true,
        value_max: VALUE_MAX,
        store: |all, value| all.peer_data_segment_max = value,
    },
    operational("MaxConnections", minimum(1, 1, 65535), false, NOWHERE),
    operational("InitialR2T", Function::Or(false), false, |all, yes| all.initial_r2t = yes == 1),
    operational("ImmediateData", Function::And(true), false, |all, yes| all.immediate_data = yes == 1),
    operational("MaxBurstLength", length(1 << 20), false, |all, value| all.burst_max = value),
    operational("FirstBurstLength", length(262_144), false, |all, value| all.first_burst_max = value),
    operational("MaxOutstandingR2T", minimum(8, 1, 65535), false, |all, value| {
        all.r2t_max = value;
    }),
    operational("DefaultTime2Wait", maximum(2, 0, 3600), true, |all, value| {
        all.time2wait = value;
    }),
    operational("DefaultTime2Retain", minimum(0, 0, 3600), true, |all, value| {
        all.time2retain = value;
    }),
    operational("DataPDUInOrder", Function::Or(true), false, NOWHERE),
    operational("DataSequenceInOrder", Function::Or(true), false, NOWHERE),
    operational("ErrorRecoveryLevel", minimum(0, 0, 2), true, NOWHERE),
    operational("iSCSIProtocolLevel", minimum(1, 0, 31), true, NOWHERE),
    operational("TaskReporting", Function::List(&["RFC3720"]), false, NOWHERE),
    // Obsolete, yet never NotUnderstood (RFC 7143 13.25).
    operational("IFMarker", Function::Constant("No"), true, NOWHERE),
    operational("OFMarker", Function::Constant("No"), true, NOWHERE),
    operational("IFMarkInt", Function::Constant("Reject"), true, NOWHERE),
    operational("OFMarkInt", Function::Constant("Reject"), true, NOWHERE),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(key: &str, value: &str, discovery: bool) -> (String, Parameters) {
        let mut parameters = Parameters::default();
        let mut answer = Answer::default();
        let (_, row) = find(key).unwrap();
        row.negotiate(&Pair { key, value }, discovery, &mut parameters, &mut answer);
        let answer = String::from_utf8(answer.into_bytes().to_vec()).unwrap();
        (answer.trim_end_matches('\0').to_owned(), parameters)
    }

    /// RFC 7143 chapter 13: each result function, with the values that real initiators send (target.md 2a, 2e, 2f).
    #[test]
    fn each_key_has_the_result_of_its_function() {
        for (key, value, answer) in [
            ("HeaderDigest", "CRC32C,None", "HeaderDigest=CRC32C"),
            ("DataDigest", "None,CRC32C", "DataDigest=None"),
            ("DataDigest", "MD5", "DataDigest=Reject"),
            ("MaxConnections", "8", "MaxConnections=1"),
            ("InitialR2T", "No", "InitialR2T=No"),
            ("InitialR2T", "Yes", "InitialR2T=Yes"),
            ("InitialR2T", "yes", "InitialR2T=Reject"),
            ("ImmediateData", "Yes", "ImmediateData=Yes"),
            ("ImmediateData", "No", "ImmediateData=No"),
            ("MaxBurstLength", "16776192", "MaxBurstLength=1048576"),
            ("MaxBurstLength", "511", "MaxBurstLength=Reject"),
            ("FirstBurstLength", "0x10000", "FirstBurstLength=65536"),
            ("FirstBurstLength", "262144", "FirstBurstLength=262144"),
            ("MaxOutstandingR2T", "1", "MaxOutstandingR2T=1"),
            ("MaxOutstandingR2T", "65535", "MaxOutstandingR2T=8"),
            ("DefaultTime2Wait", "0", "DefaultTime2Wait=2"),
            ("DefaultTime2Retain", "20", "DefaultTime2Retain=0"),
            ("DataPDUInOrder", "No", "DataPDUInOrder=Yes"),
            ("ErrorRecoveryLevel", "2", "ErrorRecoveryLevel=0"),
            ("IFMarker", "Yes", "IFMarker=No"),
            ("OFMarkInt", "2048~65535", "OFMarkInt=Reject"),
            ("TaskReporting", "FastAbort,RFC3720", "TaskReporting=RFC3720"),
            ("MaxRecvDataSegmentLength", "65536", ""),
            ("MaxRecvDataSegmentLength", "0", "MaxRecvDataSegmentLength=Reject"),
        ] {
            assert_eq!(offer(key, value, false).0, answer, "{key}={value}");
        }
    }

    /// RFC 7143 13: what a session without SCSI commands has no use for is irrelevant in it.
    #[test]
    fn a_discovery_session_has_fewer_keys() {
        assert_eq!(offer("MaxBurstLength", "65536", true).0, "MaxBurstLength=Irrelevant");
        assert_eq!(offer("HeaderDigest", "CRC32C", true).0, "HeaderDigest=CRC32C");
    }

    /// What was agreed is what counts afterwards.
    #[test]
    fn results_reach_the_parameters() {
        assert_eq!(offer("MaxRecvDataSegmentLength", "131072", false).1.peer_data_segment_max, 131_072);
        assert!(offer("HeaderDigest", "CRC32C", false).1.digests.header);
        assert!(!offer("InitialR2T", "No", false).1.initial_r2t);
        let small = offer("MaxBurstLength", "4096", false).1;
        assert_eq!((small.burst_max, small.unsolicited_max()), (4096, 4096));
    }

    /// A key stands in the table once.
    #[test]
    fn names_are_unique() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(find(row.name).map(|(found, _)| found), Some(place));
        }
    }
}
