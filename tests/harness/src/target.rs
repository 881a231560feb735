//! A target under test: Evenkeel, or Debian's tgt, which is the yardstick and the check of the tests themselves.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{image, port, process::Server};

/// Which program serves.
#[derive(Debug, Clone)]
pub enum Kind {
    /// The `evenkeel` binary at this path.
    Evenkeel(PathBuf),
    /// `tgtd` and `tgtadm` from Debian's package `tgt`.
    Tgt,
}

impl Kind {
    /// Evenkeel at `binary`, unless `EVENKEEL_TEST_TARGET=tgt` asks for the yardstick.
    #[must_use]
    pub fn from_env(binary: impl Into<PathBuf>) -> Self {
        match std::env::var("EVENKEEL_TEST_TARGET").as_deref() {
            Ok("tgt") => Self::Tgt,
            _ => Self::Evenkeel(binary.into()),
        }
    }

    /// The name for headlines and tables.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Evenkeel(_) => "evenkeel",
            Self::Tgt => "tgt",
        }
    }
}

/// What to export.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Where the backing file, the configuration and the log go.
    pub dir: PathBuf,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// One-way CHAP, when asked for.
    pub chap: Option<Chap>,
    /// Processor the server is pinned to, when asked for.
    pub core: Option<u32>,
    /// Keeps tgt's hands off the page cache, as Evenkeel's always are.
    pub direct: bool,
    /// More lines of Evenkeel's volume, e.g. `read-only = true`.
    pub volume_lines: &'static str,
}

impl Spec {
    /// A volume of `size_bytes` in `dir`, open to everybody on loopback.
    #[must_use]
    pub fn new(dir: &Path, size_bytes: u64) -> Self {
        Self { dir: dir.to_owned(), size_bytes, chap: None, core: None, direct: false, volume_lines: "" }
    }
}

/// A name and a secret.
#[derive(Debug, Clone)]
pub struct Chap {
    /// `CHAP_N`.
    pub user: String,
    /// 12 to 16 bytes, which every initiator accepts.
    pub secret: String,
}

/// A target that accepts connections.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    spec: Spec,
    server: Server,
    /// Where it listens.
    pub portal: SocketAddr,
}

impl Target {
    /// Starts `kind` on a fresh sparse file and waits until it accepts connections.
    ///
    /// # Errors
    /// When the program is missing or does not come up; the message holds its log.
    pub fn start(kind: &Kind, spec: &Spec) -> Result<Self> {
        let [portal, replication] = port::free()?;
        if let Kind::Evenkeel(_) = kind {
            write_config(spec, portal, replication)?;
        }
        Self::launch(kind, spec, portal)
    }

    fn launch(kind: &Kind, spec: &Spec, portal: SocketAddr) -> Result<Self> {
        let mut command = match kind {
            Kind::Evenkeel(binary) => {
                let mut command = pinned(binary, spec.core);
                command
                    .arg("serve")
                    .arg("--config")
                    .arg(spec.dir.join("evenkeel.toml"))
                    .args(["--node", "alpha"]);
                command
            }
            Kind::Tgt => {
                image::create_if_missing(&spec.dir.join(IMAGE), spec.size_bytes)?;
                let mut command = pinned(Path::new("tgtd"), spec.core);
                command.args(["-f", "-C", &control_port(portal), "--iscsi"]).arg(format!("portal={portal}"));
                command
            }
        };
        command.current_dir(&spec.dir);
        let mut server = Server::start(command, &spec.dir.join("target.log"))?;
        port::wait_open(portal, START_PATIENCE, || server.alive())?;
        let target = Self { kind: kind.clone(), spec: spec.clone(), server, portal };
        if let Kind::Tgt = kind {
            target.set_up_tgt()?;
        }
        Ok(target)
    }

    fn set_up_tgt(&self) -> Result<()> {
        let image = self.image();
        let image = image.to_string_lossy();
        self.tgtadm(&["--op", "new", "--mode", "target", "--tid", "1", "-T", IQN])?;
        let flags: &[&str] = if self.spec.direct { &["--bsoflags", "direct"] } else { &[] };
        let unit = ["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &image];
        self.tgtadm(&[&unit, flags].concat())?;
        let thin = ["--lun", "1", "--params", "thin_provisioning=1"];
        self.tgtadm(&[&["--op", "update", "--mode", "logicalunit", "--tid", "1"], &thin[..]].concat())?;
        for digest in ["HeaderDigest", "DataDigest"] {
            self.tgtadm(&[
                "--op",
                "update",
                "--mode",
                "target",
                "--tid",
                "1",
                "-n",
                digest,
                "-v",
                "None,CRC32C",
            ])?;
        }
        if let Some(Chap { user, secret }) = &self.spec.chap {
            self.tgtadm(&["--op", "new", "--mode", "account", "--user", user, "--password", secret])?;
            self.tgtadm(&["--op", "bind", "--mode", "account", "--tid", "1", "--user", user])?;
        }
        self.tgtadm(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"])
    }

    fn tgtadm(&self, arguments: &[&str]) -> Result<()> {
        let output = Command::new("tgtadm")
            .args(["-C", &control_port(self.portal), "--lld", "iscsi"])
            .args(arguments)
            .output()
            .context("cannot run tgtadm; install the package tgt")?;
        if !output.status.success() {
            bail!("tgtadm {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// The program under test.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The process, to be measured, watched or signalled.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// Kills the process with SIGKILL and starts it again on the same port and the same file.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn kill_and_restart(mut self) -> Result<Self> {
        self.server.kill()?;
        Self::launch(&self.kind, &self.spec, self.portal)
    }

    /// The logical unit number of the volume. tgt keeps 0 for its controller.
    #[must_use]
    pub fn lun(&self) -> u8 {
        match self.kind {
            Kind::Evenkeel(_) => 0,
            Kind::Tgt => 1,
        }
    }

    /// The backing file.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.spec.dir.join(IMAGE)
    }

    /// `iscsi://` URL of the volume, as libiscsi and QEMU spell it.
    #[must_use]
    pub fn url(&self) -> String {
        let login = self.spec.chap.as_ref().map(|chap| format!("{}%{}@", chap.user, chap.secret));
        format!("iscsi://{}{}/{IQN}/{}", login.unwrap_or_default(), self.portal, self.lun())
    }
}

/// The number that pairs a `tgtd` with its `tgtadm`: at most 15 bits.
fn control_port(portal: SocketAddr) -> String {
    (portal.port() & 0x7fff).to_string()
}

fn pinned(program: &Path, core: Option<u32>) -> Command {
    let Some(core) = core else { return Command::new(program) };
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(program);
    command
}

/// One node, one volume; the format is the contract's in docs.
fn write_config(spec: &Spec, portal: SocketAddr, replication: SocketAddr) -> Result<()> {
    secret(&spec.dir.join("cluster.secret"), "a secret that only this test knows")?;
    let chap = match &spec.chap {
        Some(Chap { user, secret: words }) => {
            secret(&spec.dir.join("volume.chap"), words)?;
            format!("chap = {{ user = \"{user}\", secret-file = \"volume.chap\" }}\n")
        }
        None => String::new(),
    };
    let admin = spec.dir.join("alpha.sock");
    let text = format!(
        r#"[cluster]
name = "single"
secret-file = "cluster.secret"

[[node]]
name = "alpha"
id = 0
replication = "{replication}"
iscsi = ["{portal}"]
admin = "{}"

[[resource]]
name = "volume"

[[resource.volume]]
number = 0
size = {}
disks = {{ alpha = "{IMAGE}" }}
{}

[resource.export]
iqn = "{IQN}"
{chap}"#,
        admin.display(),
        spec.size_bytes,
        spec.volume_lines
    );
    fs::write(spec.dir.join("evenkeel.toml"), text)?;
    Ok(())
}

/// Writes a secret with mode 0600, which the daemon insists on.
///
/// # Errors
/// When the file cannot be written.
pub fn secret(path: &Path, words: &str) -> Result<()> {
    let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    writeln!(file, "{words}")?;
    Ok(())
}

/// The target's name in every test with one volume.
pub const IQN: &str = "iqn.2026-11.io.evenkeel:volume";
const IMAGE: &str = "volume.img";
const START_PATIENCE: Duration = Duration::from_secs(20);
