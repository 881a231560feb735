//! Logins, right and wrong (RFC 7143 6.3, 11.12, 11.13; `target.md` section 3).

use std::cell::Cell;
use std::io::IoSlice;

use bytes::{Bytes, BytesMut};
use zeroize::Zeroizing;

use super::super::chap::Algorithm;
use super::super::pdu::{LoginRequest, NopOut, Numbers};
use super::super::text::{binary, hex, pairs};
use super::*;

const INITIATOR: &str = "InitiatorName=iqn.2026-11.org.example:host";
const TARGET: &str = "TargetName=iqn.2026-11.io.evenkeel:db";

/// Two targets: one that is open, and one that wants CHAP.
struct Door {
    challenger: Challenger,
    random: Cell<u8>,
}

impl Door {
    fn new() -> Self {
        Self { challenger: Challenger::new([1; 32]), random: Cell::new(0) }
    }
}

impl Admission for Door {
    fn admit(&self, initiator: &str, target: &str) -> Access {
        let credentials = |user: &str, secret: &str| {
            Some(Credentials { user: user.to_owned(), secret: Zeroizing::new(secret.as_bytes().to_vec()) })
        };
        match target {
            _ if initiator.ends_with("stranger") => Access::Forbidden,
            "iqn.2026-11.io.evenkeel:db" => Access::Granted(Grant { portal_group: 3, ..Grant::default() }),
            "iqn.2026-11.io.evenkeel:safe" => Access::Granted(Grant {
                portal_group: 3,
                chap: credentials("db", "a secret of the host"),
                mutual: credentials("evenkeel", "a secret of the target"),
            }),
            "iqn.2026-11.io.evenkeel:away" => Access::Unavailable,
            _ => Access::NotFound,
        }
    }

    fn has_session(&self, _target: &str, _initiator: &str, _isid: Isid, tsih: u16) -> bool {
        tsih == 5
    }

    fn challenger(&self) -> &Challenger {
        &self.challenger
    }

    fn random(&self, bytes: &mut [u8]) {
        self.random.set(self.random.get() + 1);
        bytes.fill(self.random.get());
    }
}

fn request(stage: Stage, next: Option<Stage>, text: &[&str]) -> LoginRequest {
    LoginRequest {
        next,
        more: false,
        stage,
        version_max: 0,
        version_min: 0,
        isid: Isid([2, 0x3d, 0, 0, 0, 1]),
        tsih: 0,
        task: 7,
        cid: 1,
        cmd_sn: 100,
        exp_stat_sn: 0,
        text: text.iter().flat_map(|pair| [pair.as_bytes(), b"\0"].concat()).collect::<Vec<u8>>().into(),
    }
}

fn operational(text: &[&str]) -> LoginRequest {
    request(Stage::Operational, Some(Stage::FullFeature), &[&[INITIATOR, TARGET], text].concat())
}

fn drain(output: &mut Output) -> BytesMut {
    let mut slices = [IoSlice::new(&[]); 8];
    let filled = output.slices(&mut slices);
    let bytes: BytesMut = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
    output.advance(bytes.len());
    bytes
}

fn wire(pdu: &Pdu) -> BytesMut {
    let mut output = Output::new();
    pdu.write(&mut output);
    drain(&mut output)
}

fn responses(output: &mut Output) -> Vec<LoginResponse> {
    let mut bytes = drain(output);
    let mut decoder = Decoder::new(Sender::Target, DEFAULT_DATA_SEGMENT, Digests::default());
    let response = |pdu| match pdu {
        Pdu::LoginResponse(response) => response,
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| decoder.next(&mut bytes).unwrap().map(|received| response(received.pdu))).collect()
}

/// A login under way, with what the target has sent.
struct Talk {
    door: Door,
    login: Option<Login>,
    output: Output,
}

impl Talk {
    fn new() -> Self {
        Self { door: Door::new(), login: Some(Login::new(128)), output: Output::new() }
    }

    fn give(&mut self, bytes: &[u8]) -> Option<Progress> {
        let login = self.login.take().unwrap();
        match login.receive(&mut BytesMut::from(bytes), &self.door, &mut self.output) {
            Progress::Continue(login) => {
                self.login = Some(login);
                None
            }
            over => Some(over),
        }
    }

    /// Goes on, and returns the one response.
    fn say(&mut self, request: LoginRequest) -> LoginResponse {
        let over = self.give(&wire(&Pdu::LoginRequest(request)));
        assert!(over.is_none(), "{over:?}");
        let [response] = &responses(&mut self.output)[..] else { panic!("one response for one request") };
        assert_eq!(response.status, LoginStatus::SUCCESS);
        response.clone()
    }

    /// Is refused, and returns how.
    fn refused(&mut self, request: LoginRequest) -> LoginStatus {
        match self.give(&wire(&Pdu::LoginRequest(request))) {
            Some(Progress::Over(LoginError::Refused { status, .. })) => {
                let told = responses(&mut self.output);
                assert_eq!(told.last().map(|response| response.status), Some(status));
                status
            }
            other => panic!("{other:?}"),
        }
    }

    fn ready(&mut self, request: LoginRequest) -> (Established, LoginResponse) {
        match self.give(&wire(&Pdu::LoginRequest(request))) {
            Some(Progress::Ready(ready)) => {
                assert!(self.output.is_empty(), "the final response waits for the session's place");
                let established = ready.accept(9, &mut self.output);
                let [response] = &responses(&mut self.output)[..] else { panic!("one response") };
                (established, response.clone())
            }
            other => panic!("{other:?}"),
        }
    }
}

fn values(response: &LoginResponse) -> Vec<String> {
    pairs(&response.text).unwrap().iter().map(|pair| format!("{}={}", pair.key, pair.value)).collect()
}

fn value<'a>(response: &'a LoginResponse, key: &str) -> &'a str {
    pairs(&response.text).unwrap().iter().find(|pair| pair.key == key).map(|pair| pair.value).unwrap()
}

/// target.md 2a: the one request in which open-iscsi logs in, and all that it asks in it.
#[test]
fn open_iscsi_logs_in_with_one_request() {
    let asked = [
        "InitiatorAlias=host",
        "SessionType=Normal",
        "HeaderDigest=None",
        "DataDigest=None",
        "DefaultTime2Wait=2",
        "DefaultTime2Retain=0",
        "IFMarker=No",
        "OFMarker=No",
        "ErrorRecoveryLevel=0",
        "InitialR2T=No",
        "ImmediateData=Yes",
        "MaxBurstLength=16776192",
        "FirstBurstLength=262144",
        "MaxOutstandingR2T=1",
        "MaxConnections=1",
        "DataPDUInOrder=Yes",
        "DataSequenceInOrder=Yes",
        "MaxRecvDataSegmentLength=262144",
    ];
    let (established, response) = Talk::new().ready(operational(&asked));
    assert_eq!(
        (response.next, response.stage, response.tsih),
        (Some(Stage::FullFeature), Stage::Operational, 9)
    );
    assert_eq!((response.isid, response.task), (Isid([2, 0x3d, 0, 0, 0, 1]), 7));
    assert_eq!(response.numbers, Numbers { stat_sn: 1, exp_cmd_sn: 100, max_cmd_sn: 227 });
    let mut answers = values(&response);
    answers.sort_unstable();
    assert_eq!(
        answers,
        [
            "DataDigest=None",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
            "DefaultTime2Retain=0",
            "DefaultTime2Wait=2",
            "ErrorRecoveryLevel=0",
            "FirstBurstLength=262144",
            "HeaderDigest=None",
            "IFMarker=No",
            "ImmediateData=Yes",
            "InitialR2T=No",
            "MaxBurstLength=1048576",
            "MaxConnections=1",
            "MaxOutstandingR2T=1",
            "MaxRecvDataSegmentLength=262144",
            "OFMarker=No",
            "TargetPortalGroupTag=3",
        ]
    );
    let parameters = established.parameters;
    assert_eq!((parameters.peer_data_segment_max, parameters.burst_max), (262_144, 1 << 20));
    assert!(!parameters.initial_r2t && parameters.immediate_data);
    assert_eq!((established.stat_sn, established.exp_cmd_sn), (2, 100));
}

/// RFC 7143 13.12: what is never declared stays at its default, on both sides.
#[test]
fn silence_means_the_defaults() {
    let (established, response) = Talk::new().ready(operational(&[]));
    assert_eq!(established.parameters, Parameters::default());
    assert_eq!(value(&response, "MaxRecvDataSegmentLength"), "262144");
}

/// RFC 7143 6.3: through both stages, with names said again as libiscsi does; and straight from security to work.
#[test]
fn stages_follow_each_other() {
    let mut talk = Talk::new();
    let security = &[INITIATOR, TARGET, "SessionType=Normal", "AuthMethod=CHAP,None"];
    let response = talk.say(request(Stage::Security, Some(Stage::Operational), security));
    assert_eq!(response.next, Some(Stage::Operational));
    assert_eq!(values(&response), ["AuthMethod=None", "TargetPortalGroupTag=3"]);
    let (_, response) = talk.ready(operational(&["SessionType=Normal", "HeaderDigest=CRC32C,None"]));
    assert_eq!(values(&response), ["HeaderDigest=CRC32C", "MaxRecvDataSegmentLength=262144"]);

    let (_, response) = Talk::new().ready(request(Stage::Security, Some(Stage::FullFeature), security));
    assert_eq!(value(&response, "MaxRecvDataSegmentLength"), "262144");
}

/// RFC 7143 4.3.2: a discovery session needs no target, and gets no portal group.
#[test]
fn discovery_needs_no_target() {
    let asked = [INITIATOR, "SessionType=Discovery", "MaxRecvDataSegmentLength=32768", "MaxBurstLength=4096"];
    let (established, response) =
        Talk::new().ready(request(Stage::Operational, Some(Stage::FullFeature), &asked));
    assert_eq!(established.identity.purpose, Purpose::Discovery);
    assert_eq!(values(&response), ["MaxBurstLength=Irrelevant", "MaxRecvDataSegmentLength=262144"]);
}

/// RFC 7143 11.13.5: every reason to refuse has its own status (target.md recipes 10, 11, 27, 29 and more).
#[test]
fn refusals_say_why() {
    let first = |text: &[&str]| request(Stage::Operational, Some(Stage::FullFeature), text);
    let many: Vec<String> = (0..700).map(|number| format!("X-key{number}=1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long_key = format!("{}=1", "K".repeat(64));
    let long_value = format!("MaxConnections={}", "1".repeat(256));
    for (request, status) in [
        (first(&[TARGET]), LoginStatus::MISSING_PARAMETER),
        (first(&[INITIATOR]), LoginStatus::MISSING_PARAMETER),
        (first(&[INITIATOR, TARGET, "SessionType=Other"]), LoginStatus::SESSION_TYPE),
        (first(&[INITIATOR, "TargetName=iqn.2026-11.io.evenkeel:none"]), LoginStatus::NOT_FOUND),
        (first(&[INITIATOR, "TargetName=iqn.2026-11.io.evenkeel:away"]), LoginStatus::UNAVAILABLE),
        (first(&["InitiatorName=iqn.2026-11.org.example:stranger", TARGET]), LoginStatus::FORBIDDEN),
        (first(&["InitiatorName=host\x1b[2J", TARGET]), LoginStatus::INITIATOR_ERROR),
        (LoginRequest { tsih: 0x7777, ..operational(&[]) }, LoginStatus::NO_SESSION),
        (LoginRequest { tsih: 5, ..operational(&[]) }, LoginStatus::TOO_MANY_CONNECTIONS),
        (
            LoginRequest { version_min: 1, version_max: 2, ..operational(&[]) },
            LoginStatus::UNSUPPORTED_VERSION,
        ),
        (operational(&["HeaderDigest"]), LoginStatus::INITIATOR_ERROR),
        (operational(&["HeaderDigest=None", "HeaderDigest=None"]), LoginStatus::INITIATOR_ERROR),
        (operational(&["X-a=1", "X-a=1"]), LoginStatus::INITIATOR_ERROR),
        (operational(&[&long_key]), LoginStatus::INITIATOR_ERROR),
        (operational(&[&long_value]), LoginStatus::INITIATOR_ERROR),
        (operational(&["AuthMethod=None"]), LoginStatus::INITIATOR_ERROR),
        (operational(&["TargetPortalGroupTag=1"]), LoginStatus::INITIATOR_ERROR),
        (operational(&["SendTargets=All"]), LoginStatus::INITIATOR_ERROR),
        (operational(&many), LoginStatus::INITIATOR_ERROR),
        (LoginRequest { more: true, ..operational(&[]) }, LoginStatus::INITIATOR_ERROR),
        (
            request(Stage::Operational, Some(Stage::Operational), &[INITIATOR, TARGET]),
            LoginStatus::INITIATOR_ERROR,
        ),
        (
            request(Stage::Security, None, &[INITIATOR, TARGET, "AuthMethod=KRB5"]),
            LoginStatus::AUTHENTICATION_FAILURE,
        ),
    ] {
        let text = String::from_utf8_lossy(&request.text).into_owned();
        assert_eq!(Talk::new().refused(request), status, "{text:?}");
    }
}

/// RFC 7143 6.2: unknown keys are not understood, wrong values rejected, and the login goes on.
#[test]
fn unknown_keys_are_answered() {
    let (_, response) = Talk::new().ready(operational(&["X-com.example.key=1", "MaxBurstLength=1"]));
    assert_eq!(value(&response, "X-com.example.key"), "NotUnderstood");
    assert_eq!(value(&response, "MaxBurstLength"), "Reject");
}

/// RFC 7143 6.2: text may be cut anywhere between requests, and a key may not come twice in a login.
#[test]
fn text_goes_on_in_the_next_request() {
    let mut talk = Talk::new();
    let whole = operational(&["HeaderDigest=CRC32C"]);
    let (start, rest) = (whole.text.slice(..30), whole.text.slice(30..));
    let response = talk.say(LoginRequest { more: true, next: None, text: start, ..whole.clone() });
    assert_eq!((response.next, response.text.len()), (None, 0));
    let response = talk.say(LoginRequest { next: None, text: rest, ..whole.clone() });
    assert_eq!(value(&response, "HeaderDigest"), "CRC32C");
    let again = LoginRequest { text: Bytes::from_static(b"HeaderDigest=None\0"), ..whole };
    assert_eq!(talk.refused(again), LoginStatus::INITIATOR_ERROR);
}

/// target.md recipe 30: a login that never ends is ended, by its text or by its requests.
#[test]
fn an_endless_login_ends() {
    let mut talk = Talk::new();
    let part = LoginRequest {
        more: true,
        next: None,
        text: Bytes::from(vec![b'a'; 8192]),
        ..request(Stage::Operational, None, &[])
    };
    for _ in 0..8 {
        talk.say(part.clone());
    }
    assert_eq!(talk.refused(part), LoginStatus::INITIATOR_ERROR);

    let mut talk = Talk::new();
    talk.say(request(Stage::Operational, None, &[INITIATOR, TARGET]));
    for _ in 1..64 {
        talk.say(request(Stage::Operational, None, &[]));
    }
    assert_eq!(talk.refused(request(Stage::Operational, None, &[])), LoginStatus::INITIATOR_ERROR);
}

/// RFC 7143 11.12: what identifies the login stays the same, and so does the stage until both agree to leave it.
#[test]
fn a_login_does_not_change_its_mind() {
    let next = request(Stage::Operational, None, &[]);
    for changed in [
        LoginRequest { isid: Isid([9; 6]), ..next.clone() },
        LoginRequest { tsih: 5, ..next.clone() },
        LoginRequest { cid: 2, ..next.clone() },
        LoginRequest { task: 8, ..next.clone() },
        LoginRequest { stage: Stage::Security, ..next.clone() },
        LoginRequest { text: Bytes::from_static(b"InitiatorName=iqn.2026-11.org.example:other\0"), ..next },
    ] {
        let mut talk = Talk::new();
        talk.say(request(Stage::Operational, None, &[INITIATOR, TARGET]));
        assert_eq!(talk.refused(changed), LoginStatus::INITIATOR_ERROR);
    }
}

/// RFC 7143 6.3 and target.md recipe 5: who does not start with a login gets no answer; who leaves it half-way does.
#[test]
fn only_logins_are_answered() {
    let nop = Pdu::NopOut(NopOut {
        immediate: true,
        lun: 0,
        task: Some(1),
        transfer: None,
        cmd_sn: 0,
        exp_stat_sn: 0,
        data: Bytes::new(),
    });
    let http = *b"GET / HTTP/1.1\r\nHost: 192.0.2.1:3260\r\nAccept: */*\r\n";
    for bytes in [&wire(&nop)[..], &http, &[0x47; 48], &[0x43, 0x87, 0, 0, 0, 0xff, 0xff, 0xff].repeat(6)] {
        let mut talk = Talk::new();
        assert!(matches!(talk.give(bytes), Some(Progress::Over(LoginError::NotLogin(_)))));
        assert!(talk.output.is_empty());
    }
    let mut talk = Talk::new();
    talk.say(request(Stage::Operational, None, &[INITIATOR, TARGET]));
    let over = talk.give(&wire(&nop));
    assert!(matches!(
        over,
        Some(Progress::Over(LoginError::Refused { status: LoginStatus::INVALID_DURING_LOGIN, .. }))
    ));
}

/// P13: whatever is in the text of a login, cut anywhere, nothing falls over.
#[test]
fn mutated_logins_are_survived() {
    let whole = operational(&["HeaderDigest=CRC32C", "MaxBurstLength=0x10000", "X-a=1"]);
    let bytes = wire(&Pdu::LoginRequest(whole));
    for at in 0..bytes.len() {
        for value in [0, 1, b'=', b'0', 0x7f, 0x80, 0xff] {
            let mut mutated = bytes.clone();
            mutated[at] = value;
            let mut talk = Talk::new();
            let _ = talk.give(&mutated);
        }
    }
}

const SAFE: &str = "TargetName=iqn.2026-11.io.evenkeel:safe";

/// Takes a login up to the challenge.
fn challenged(talk: &mut Talk, algorithms: &str) -> LoginResponse {
    let response = talk.say(request(Stage::Security, None, &[INITIATOR, SAFE, "AuthMethod=None,CHAP"]));
    assert_eq!(value(&response, "AuthMethod"), "CHAP");
    talk.say(request(Stage::Security, None, &[&format!("CHAP_A={algorithms}")]))
}

fn proof(response: &LoginResponse, user: &str, secret: &str) -> LoginRequest {
    let algorithm = value(response, "CHAP_A").parse().ok().and_then(Algorithm::from_number).unwrap();
    let challenge = binary(value(response, "CHAP_C"), 1024).unwrap();
    let identifier = value(response, "CHAP_I").parse().unwrap();
    let proof = hex(&algorithm.response(identifier, secret.as_bytes(), &challenge));
    let text = [format!("CHAP_N={user}"), format!("CHAP_R={proof}")];
    request(Stage::Security, Some(Stage::Operational), &[&text[0], &text[1]])
}

/// RFC 7143 12.1.3: the first hash of the initiator's that we have, and the right name and secret.
#[test]
fn chap_wants_name_and_secret() {
    for (algorithms, chosen) in [("8,7,6,5", "8"), ("5", "5"), ("99,6,5", "6"), ("7", "7")] {
        let mut talk = Talk::new();
        let response = challenged(&mut talk, algorithms);
        assert_eq!(value(&response, "CHAP_A"), chosen);
        let response = talk.say(proof(&response, "db", "a secret of the host"));
        assert_eq!(response.next, Some(Stage::Operational));
    }
    for (user, secret) in [("db", "another secret"), ("da", "a secret of the host"), ("", "")] {
        let mut talk = Talk::new();
        let response = challenged(&mut talk, "5");
        assert_eq!(talk.refused(proof(&response, user, secret)), LoginStatus::AUTHENTICATION_FAILURE);
    }
    let mut talk = Talk::new();
    challenged(&mut talk, "5");
    let silent = request(Stage::Security, Some(Stage::Operational), &["CHAP_N=db"]);
    assert_eq!(talk.refused(silent), LoginStatus::AUTHENTICATION_FAILURE);
}

/// Security promise: where CHAP is configured, there is no way round it.
#[test]
fn chap_cannot_be_left_out() {
    for first in [
        request(Stage::Operational, Some(Stage::FullFeature), &[INITIATOR, SAFE]),
        request(Stage::Security, Some(Stage::FullFeature), &[INITIATOR, SAFE]),
        request(Stage::Security, Some(Stage::FullFeature), &[INITIATOR, SAFE, "AuthMethod=None"]),
    ] {
        assert_eq!(Talk::new().refused(first), LoginStatus::AUTHENTICATION_FAILURE);
    }
    // Whoever wants to go on at once is kept in the security stage until it has proved itself.
    let mut talk = Talk::new();
    let eager = request(Stage::Security, Some(Stage::FullFeature), &[INITIATOR, SAFE, "AuthMethod=CHAP"]);
    assert_eq!(talk.say(eager).next, None);
    let eager = request(Stage::Security, Some(Stage::FullFeature), &["CHAP_A=99"]);
    assert_eq!(talk.refused(eager), LoginStatus::AUTHENTICATION_FAILURE);
}

/// RFC 7143 12.1.3: the target proves itself with its own secret, and never answers a challenge of its own, on
/// whichever connection it was given out.
#[test]
fn mutual_chap_does_not_fall_for_reflection() {
    let with_challenge = |response: &LoginResponse, challenge: &[u8]| {
        let mut request = proof(response, "db", "a secret of the host");
        let more = format!("CHAP_I=17\0CHAP_C={}\0", hex(challenge));
        request.text = [&request.text[..], more.as_bytes()].concat().into();
        request
    };
    let mut talk = Talk::new();
    let response = challenged(&mut talk, "7");
    let response = talk.say(with_challenge(&response, b"a challenge of the host"));
    let expected = Algorithm::Sha256.response(17, b"a secret of the target", b"a challenge of the host");
    assert_eq!(value(&response, "CHAP_N"), "evenkeel");
    assert_eq!(value(&response, "CHAP_R"), hex(&expected));

    let mut other = Talk::new();
    let stolen = binary(value(&challenged(&mut other, "7"), "CHAP_C"), 1024).unwrap();
    for challenge in [Some(stolen), None] {
        let mut talk = Talk::new();
        talk.door.random.set(100);
        let response = challenged(&mut talk, "7");
        let challenge = challenge.unwrap_or_else(|| binary(value(&response, "CHAP_C"), 1024).unwrap());
        let reflected = with_challenge(&response, &challenge);
        assert_eq!(talk.refused(reflected), LoginStatus::AUTHENTICATION_FAILURE);
    }
}

/// Security promise: no challenge comes twice.
#[test]
fn challenges_are_distinct() {
    let challenger = Challenger::new([7; 32]);
    let challenges: std::collections::BTreeSet<_> =
        (0..10_000_u128).map(|nonce| challenger.challenge(nonce.to_be_bytes())).collect();
    assert_eq!(challenges.len(), 10_000);
}

/// RFC 7143 6.3.5: a caller without room refuses behind the negotiation, before the final response.
#[test]
fn the_caller_may_refuse() {
    let mut talk = Talk::new();
    match talk.give(&wire(&Pdu::LoginRequest(operational(&[])))) {
        Some(Progress::Ready(ready)) => {
            let error = ready.refuse(LoginStatus::OUT_OF_RESOURCES, &mut talk.output);
            assert!(error.to_string().contains("out of resources"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(responses(&mut talk.output)[0].status, LoginStatus::OUT_OF_RESOURCES);
}
