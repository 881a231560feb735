//! Meetings of two ends, and of one end with somebody who is none.

use bytes::BytesMut;
use hello::Role;

use super::*;

/// What an end came to; `None` while it waits for the rest of a message.
type Outcome = Option<Result<Authenticated, AuthError>>;

fn identity(node: u8) -> Identity {
    let secret = Secret::new(b"a secret of the cluster".to_vec());
    Identity { cluster: "demo".into(), node: NodeId(node), instance: 70 + u64::from(node), secret }
}

fn take(bytes: &[u8]) -> Option<Result<Message, AuthError>> {
    Message::take(&mut BytesMut::from(bytes)).transpose()
}

macro_rules! receive {
    ($bytes:expr) => {
        match take(&$bytes) {
            Some(Ok(message)) => message,
            Some(Err(error)) => return Some(Err(error)),
            None => return None,
        }
    };
}

/// Both ends of one meeting, message by message.
struct Meeting {
    dialler: Identity,
    acceptor: Identity,
    admitted: Result<(), Refusal>,
    nonces: (Nonce, Nonce),
}

impl Meeting {
    fn new() -> Self {
        let nonces = ([1; 32], [2; 32]);
        Self { dialler: identity(0), acceptor: identity(1), admitted: Ok(()), nonces }
    }

    /// Runs both ends; `tamper` sees each message, numbered from 0 on, on its way.
    fn run(&self, mut tamper: impl FnMut(usize, &mut Vec<u8>)) -> (Outcome, Outcome) {
        let mut acceptor = None;
        let dialler = self.dialler(&mut tamper, &mut acceptor);
        (dialler, acceptor)
    }

    fn dialler(&self, tamper: &mut dyn FnMut(usize, &mut Vec<u8>), acceptor: &mut Outcome) -> Outcome {
        let mut wire = Vec::new();
        let dialling = ExpectHello::dial(&self.dialler, "db", NodeId(1), self.nonces.0, &mut wire);
        tamper(0, &mut wire);
        let mut answer = Vec::new();
        let accepting = match self.claim(&wire, &mut answer) {
            Ok(accepting) => Some(accepting),
            Err(outcome) => {
                *acceptor = outcome;
                None
            }
        };
        tamper(1, &mut answer);
        let mut proof = Vec::new();
        let dialling = match dialling.receive(&receive!(answer), &mut proof) {
            Ok(dialling) => dialling,
            Err(error) => return Some(Err(error)),
        };
        tamper(2, &mut proof);
        let mut verdict = Vec::new();
        let judge = |accepting: ExpectProof| Some(accepting.receive(&receive!(proof), &mut verdict));
        *acceptor = acceptor.take().or_else(|| accepting.and_then(judge));
        tamper(3, &mut verdict);
        Some(dialling.receive(&receive!(verdict)))
    }

    fn claim(&self, hello: &[u8], output: &mut Vec<u8>) -> Result<ExpectProof, Outcome> {
        let message = take(hello).ok_or(None)?.map_err(|error| Some(Err(error)))?;
        Claimed::read(&message)
            .and_then(|claimed| claimed.answer(&self.acceptor, self.nonces.1, self.admitted, output))
            .map_err(|error| Some(Err(error)))
    }

    /// The four messages of a meeting.
    fn messages(&self) -> [Vec<u8>; 4] {
        let mut messages = [const { Vec::new() }; 4];
        let outcome = self.run(|number, message| messages[number] = message.clone());
        assert!(matches!(outcome, (Some(Ok(_)), Some(Ok(_)))), "{outcome:?}");
        messages
    }
}

#[test]
fn both_ends_learn_who_the_other_is() {
    let (dialler, acceptor) = Meeting::new().run(|_, _| ());
    let met = |peer, instance| Authenticated {
        peer: NodeId(peer),
        instance,
        resource: "db".into(),
        version: VERSIONS.1,
        features: 0,
    };
    assert_eq!((dialler, acceptor), (Some(Ok(met(1, 71))), Some(Ok(met(0, 70)))));
}

/// P13: with any bit of any message flipped, nobody who depends on that message is convinced.
#[test]
fn every_flipped_bit_is_refused() {
    for (number, message) in Meeting::new().messages().iter().enumerate() {
        for bit in 0..message.len() * 8 {
            let (dialler, acceptor) = Meeting::new().run(|other, bytes| {
                if other == number {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            });
            assert!(!matches!(dialler, Some(Ok(_))), "message {number}, bit {bit}");
            assert!(number == 3 || !matches!(acceptor, Some(Ok(_))), "message {number}, bit {bit}");
        }
    }
}

/// P13: no bytes of a stranger make the process panic, and none convince it.
#[test]
fn mutations_are_refused() {
    let messages = Meeting::new().messages();
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    for round in 0..20_000 {
        let number = random(4);
        let mut message = messages[number].clone();
        for _ in 0..=random(4) {
            let at = random(message.len());
            message[at] = random(256).to_be_bytes()[7];
        }
        message.truncate(message.len() - random(2) * random(message.len()));
        let mut bytes = Vec::new();
        let kind = u16::from_be_bytes([0, 1 + random(3).to_be_bytes()[7]]);
        message::put_message(kind, &[message.get(8..).unwrap_or_default()], &mut bytes);
        if bytes == messages[number] {
            continue;
        }
        let (dialler, acceptor) = Meeting::new().run(|other, wire| {
            if other == number {
                wire.clone_from(&bytes);
            }
        });
        assert!(!matches!(dialler, Some(Ok(_))), "round {round}");
        assert!(number == 3 || !matches!(acceptor, Some(Ok(_))), "round {round}");
    }
}

/// A message is whole or nothing, and what cannot become one is refused as soon as that shows.
#[test]
fn a_message_is_taken_whole_or_not_at_all() {
    for message in Meeting::new().messages() {
        for cut in 0..message.len() {
            assert_eq!(take(&message[..cut]), None);
            let longer = [&message[..], &message[..cut]].concat();
            assert!(matches!(take(&longer), Some(Ok(taken)) if taken.bytes == message));
        }
    }
    assert_eq!(take(b"GET "), Some(Err(AuthError::Magic { magic: 0x4745_5420 })));
    assert_eq!(take(b"G"), Some(Err(AuthError::Magic { magic: 0x4700_0000 })));
    assert_eq!(take(b"EKh1\0\x01\xff\xff"), Some(Err(AuthError::Length { len: 0x1_0007 })));
    assert_eq!(take(b"EKh1\0\x01\x03\xf9"), Some(Err(AuthError::Length { len: MESSAGE_MAX + 1 })));
}

/// P13: who does not know the secret is told nothing, whichever end it plays.
#[test]
fn another_secret_is_refused_in_silence() {
    let mut meeting = Meeting::new();
    meeting.dialler.secret = Secret::new(b"another".to_vec());
    let (dialler, acceptor) = meeting.run(|_, _| ());
    assert_eq!((dialler, acceptor), (None, Some(Err(AuthError::Proof))), "no verdict was sent");

    // An acceptor without the secret can only make its verdict up.
    let impostor = Secret::new(b"another".to_vec());
    let [hello, answer, ..] = Meeting::new().messages();
    let said = [&[0][..], &hello, &answer].concat();
    let (dialler, _) = Meeting::new().run(|number, bytes| {
        if number == 3 {
            bytes.clear();
            let proof = prove(&impostor, ACCEPTOR_LABEL, &said);
            message::put_message(message::VERDICT, &[&[0], &proof], bytes);
        }
    });
    assert_eq!(dialler, Some(Err(AuthError::Proof)));
}

/// P13: what was said on one connection convinces nobody on another.
#[test]
fn a_replay_is_refused() {
    let recorded = Meeting::new().messages();
    let fresh = Meeting { nonces: ([3; 32], [4; 32]), ..Meeting::new() };
    let as_dialler = fresh.run(|number, bytes| {
        if number % 2 == 0 {
            bytes.clone_from(&recorded[number]);
        }
    });
    assert_eq!(as_dialler.1, Some(Err(AuthError::Proof)));
    let as_acceptor = fresh.run(|number, bytes| {
        if number % 2 == 1 {
            bytes.clone_from(&recorded[number]);
        }
    });
    assert_eq!(as_acceptor.0, Some(Err(AuthError::Proof)));
}

/// Nobody is convinced by its own words, on the same connection or on a second one beside it.
#[test]
fn a_reflection_is_refused() {
    let meeting = Meeting::new();
    let [hello, _, proof, _] = meeting.messages();
    let dialling = || ExpectHello::dial(&identity(0), "db", NodeId(1), [1; 32], &mut Vec::new());
    let reflected = |bytes: &[u8]| dialling().receive(&take(bytes).unwrap().unwrap(), &mut Vec::new());
    assert_eq!(reflected(&hello).unwrap_err(), AuthError::OwnNonce);
    let mut other_nonce = hello.clone();
    other_nonce[8 + 23] ^= 1;
    assert_eq!(reflected(&other_nonce).unwrap_err(), AuthError::OwnRole);

    // Node 1 calls someone who calls node 1 back with the same words.
    let claimed = Claimed::read(&take(&hello).unwrap().unwrap()).unwrap();
    let own = claimed.answer(&identity(0), [2; 32], Ok(()), &mut Vec::new());
    assert_eq!(own.unwrap_err(), AuthError::OwnNode { node: NodeId(0) });
    let claimed = Claimed::read(&take(&hello).unwrap().unwrap()).unwrap();
    let same_nonce = claimed.answer(&identity(1), [1; 32], Ok(()), &mut Vec::new());
    assert_eq!(same_nonce.unwrap_err(), AuthError::OwnNonce);

    // A dialler's proof does not pass for a verdict, whatever it is called.
    let (outcome, _) = meeting.run(|number, bytes| {
        if number == 3 {
            bytes.clone_from(&proof);
        }
    });
    assert_eq!(outcome, Some(Err(AuthError::Kind { expected: message::VERDICT, received: message::PROOF })));
    let (outcome, _) = meeting.run(|number, bytes| {
        if number == 3 {
            bytes.clear();
            message::put_message(message::VERDICT, &[&[0], &proof[8..]], bytes);
        }
    });
    assert_eq!(outcome, Some(Err(AuthError::Proof)));
}

#[test]
fn swapped_roles_are_refused() {
    let [_, answer, ..] = Meeting::new().messages();
    assert_eq!(Claimed::read(&take(&answer).unwrap().unwrap()).unwrap_err(), AuthError::OwnRole);
    let hello = Hello::read(&take(&answer).unwrap().unwrap()).unwrap();
    assert_eq!(hello.role, Role::Acceptor);
    let as_dialler = Hello { role: Role::Dialler, ..hello }.encode();
    let (outcome, _) = Meeting::new().run(|number, bytes| {
        if number == 1 {
            bytes.clone_from(&as_dialler);
        }
    });
    assert_eq!(outcome, Some(Err(AuthError::OwnRole)));
}

/// A node with the secret learns why it is refused, and both ends know the same reason.
#[test]
fn a_reason_is_told_behind_a_proof() {
    let reasons = |meeting: &Meeting, refusal| {
        let refused = Some(Err(AuthError::Refused { refusal }));
        assert_eq!(meeting.run(|_, _| ()), (refused.clone(), refused));
    };
    for refusal in [Refusal::Resource, Refusal::Peer] {
        reasons(&Meeting { admitted: Err(refusal), ..Meeting::new() }, refusal);
    }
    reasons(&Meeting { acceptor: identity(2), ..Meeting::new() }, Refusal::Node);
    let other = Identity { cluster: "other".into(), ..identity(1) };
    reasons(&Meeting { acceptor: other, ..Meeting::new() }, Refusal::Cluster);
}

/// P13: the answer to a stranger is the same, whatever exists here.
#[test]
fn an_answer_tells_a_stranger_nothing() {
    let answer = |acceptor: Identity, admitted| {
        let [hello, ..] = Meeting::new().messages();
        let (mut output, meeting) = (Vec::new(), Meeting { acceptor, admitted, ..Meeting::new() });
        meeting.claim(&hello, &mut output).unwrap();
        output
    };
    let welcome = answer(identity(1), Ok(()));
    for refusal in Refusal::ALL {
        assert_eq!(answer(identity(1), Err(refusal)), welcome);
    }
    assert_eq!(answer(Identity { node: NodeId(5), ..identity(1) }, Ok(())), welcome);
    assert_eq!(answer(Identity { cluster: "other".into(), ..identity(1) }, Ok(())), welcome);
    assert_eq!(welcome.len(), Meeting::new().messages()[0].len(), "no answer is longer than the question");
}

#[test]
fn the_version_is_the_highest_that_both_speak() {
    for (a, b, c, d) in (0..4 * 4 * 4 * 4).map(|n| (n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6)) {
        let expected = (0..4).filter(|v| (a..=b).contains(v) && (c..=d).contains(v)).max();
        assert_eq!(highest_common((a, b), (c, d)), expected, "{a}..{b} {c}..{d}");
    }
}

/// Both ends know both ranges when nothing is common, the acceptor's answer included.
#[test]
fn no_common_version_is_an_error_at_both_ends() {
    let newer = |bytes: &mut Vec<u8>| {
        let hello = Hello::read(&take(bytes).unwrap().unwrap()).unwrap();
        *bytes = Hello { versions: (3, 9), ..hello }.encode();
    };
    for changed in [0, 1] {
        let outcome = Meeting::new().run(|number, bytes| {
            if number == changed {
                newer(bytes);
            }
        });
        let error = Some(Err(AuthError::Version { ours: VERSIONS, theirs: (3, 9) }));
        let changed_one = if changed == 0 { outcome.1 } else { outcome.0 };
        assert_eq!(changed_one, error);
    }
    let error = AuthError::Version { ours: (1, 1), theirs: (2, 9) };
    assert_eq!(error.to_string(), "we speak versions 1 to 1 of the protocol and the other end 2 to 9");
}

#[test]
fn a_secret_is_never_printed() {
    assert_eq!(format!("{:?}", Secret::new(b"hidden".to_vec())), "Secret");
}
