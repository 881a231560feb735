//! Login by hand (RFC 7143, sections 6 and 11.12).

use anyhow::{Result, bail};

use super::{Connection, Pdu, opcode};

/// A login request in the making. It starts as open-iscsi's does: straight in the operational stage.
#[derive(Debug, Clone)]
pub struct Login {
    /// Keys in the order sent. A key without `=` is sent as it stands.
    pub keys: Vec<String>,
    /// Byte 1: transit, continue, current and next stage.
    pub flags: u8,
    /// Initiator session identifier.
    pub isid: [u8; 6],
    /// Target session identifying handle: not zero to join a session.
    pub tsih: u16,
    /// Connection identifier.
    pub cid: u16,
    /// First command sequence number.
    pub cmd_sn: u32,
}

impl Login {
    /// A normal session with the target `iqn`.
    #[must_use]
    pub fn normal(iqn: &str) -> Self {
        Self::named("one", 1).key("SessionType", "Normal").key("TargetName", iqn)
    }

    /// A discovery session.
    #[must_use]
    pub fn discovery() -> Self {
        Self::named("one", 1).key("SessionType", "Discovery")
    }

    fn named(name: &str, isid: u8) -> Self {
        Self {
            keys: vec![
                format!("InitiatorName={INITIATOR}:{name}"),
                // This initiator computes no digests, and a target may offer them of its own accord.
                "HeaderDigest=None".into(),
                "DataDigest=None".into(),
            ],
            flags: OPERATIONAL_TO_FULL_FEATURE,
            isid: [0x80, 0, 0, 0, 0, isid],
            tsih: 0,
            cid: 0,
            cmd_sn: 1,
        }
    }

    /// The same login from another initiator port.
    #[must_use]
    pub fn from_initiator(mut self, name: &str, isid: u8) -> Self {
        self.keys[0] = format!("InitiatorName={INITIATOR}:{name}");
        self.isid[5] = isid;
        self
    }

    /// Adds a key.
    #[must_use]
    pub fn key(mut self, key: &str, value: &str) -> Self {
        self.keys.push(format!("{key}={value}"));
        self
    }

    /// Adds text that need not be a key.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.keys.push(text.to_owned());
        self
    }

    /// Joins the session `tsih` as connection `cid`.
    #[must_use]
    pub fn join(mut self, tsih: u16, cid: u16) -> Self {
        (self.tsih, self.cid) = (tsih, cid);
        self
    }

    /// Sets the stages.
    #[must_use]
    pub fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    /// The request as a PDU.
    #[must_use]
    pub fn pdu(&self) -> Pdu {
        let mut text = self.keys.join("\0").into_bytes();
        if !text.is_empty() {
            text.push(0);
        }
        let mut pdu = Pdu::new(opcode::LOGIN).immediate().flags(self.flags).data(text);
        pdu.header[8..14].copy_from_slice(&self.isid);
        pdu.header[14..16].copy_from_slice(&self.tsih.to_be_bytes());
        pdu.header[20..22].copy_from_slice(&self.cid.to_be_bytes());
        pdu.word(16, LOGIN_TAG).word(24, self.cmd_sn)
    }

    /// Sends the request on `connection` and returns the answer, a refusal included.
    ///
    /// # Errors
    /// When the target closes or stays silent without an answer.
    pub fn send(&self, connection: &mut Connection) -> Result<LoginAnswer> {
        connection.send(&self.pdu())?;
        LoginAnswer::receive(connection)
    }

    /// Negotiates until the full-feature phase or a refusal; keys of all answers are gathered.
    ///
    /// # Errors
    /// When the target closes or stays silent without an answer.
    pub fn negotiate(&self, connection: &mut Connection) -> Result<LoginAnswer> {
        let mut answer = self.send(connection)?;
        for _ in 0..ROUNDS_MAX {
            if answer.status != 0 || answer.full_feature {
                return Ok(answer);
            }
            let mut next = self.clone();
            next.keys.clear();
            let mut next = next.send(connection)?;
            next.keys.splice(0..0, answer.keys);
            answer = next;
        }
        bail!("login did not end after {ROUNDS_MAX} rounds")
    }
}

/// What a Login Response says.
#[derive(Debug, Clone)]
pub struct LoginAnswer {
    /// Status class and detail as one number, 0x0207 and the like; 0 is success.
    pub status: u16,
    /// The session may carry commands now.
    pub full_feature: bool,
    /// More text follows (the C bit).
    pub continues: bool,
    /// Target session identifying handle.
    pub tsih: u16,
    /// `StatSN`, `ExpCmdSN` and `MaxCmdSN`.
    pub sequence: [u32; 3],
    /// `Key=value` as received.
    pub keys: Vec<String>,
    /// Length of the data segment in bytes.
    pub data_len: usize,
}

impl LoginAnswer {
    /// Reads the next Login Response.
    ///
    /// # Errors
    /// When something else comes.
    pub fn receive(connection: &mut Connection) -> Result<Self> {
        let pdu = connection.receive()?;
        if pdu.opcode() != opcode::LOGIN_RESPONSE {
            bail!("expected a Login Response, got opcode {:#04x}", pdu.opcode());
        }
        let half = |at: usize| u16::from_be_bytes([pdu.header[at], pdu.header[at + 1]]);
        let flags = pdu.header[1];
        Ok(Self {
            status: half(36),
            full_feature: flags & 0x83 == 0x83,
            continues: flags & 0x40 != 0,
            tsih: half(14),
            sequence: [pdu.read_word(24), pdu.read_word(28), pdu.read_word(32)],
            data_len: pdu.data.len(),
            keys: pdu
                .data
                .split(|&byte| byte == 0)
                .filter(|key| !key.is_empty())
                .map(|key| String::from_utf8_lossy(key).into_owned())
                .collect(),
        })
    }

    /// The value of `key`, when answered.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.keys.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }
}

/// Transit from the operational stage to the full-feature phase.
const OPERATIONAL_TO_FULL_FEATURE: u8 = 0x87;
const INITIATOR: &str = "iqn.2026-11.io.evenkeel.test";
const LOGIN_TAG: u32 = 0x10;
const ROUNDS_MAX: usize = 8;
