//! A node's configuration: the file as the node itself reads it, and which of the nodes this is.

use std::{
    fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

use ops::config::{Checked, Config};
use thiserror::Error;
use tracing::warn;

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigurationError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file has errors.
    #[error("{problems}")]
    Problems {
        /// All of them, for people.
        problems: String,
    },
    /// No node has this name.
    #[error("the configuration has no node {name:?}; its nodes are {nodes}")]
    NoNode {
        /// What `--node` says.
        name: String,
        /// The nodes that there are.
        nodes: String,
    },
    /// No node has the name of this host.
    #[error("this host is {host:?}, which is none of the nodes {nodes}: give --node NAME")]
    NoNodeHere {
        /// The host's name.
        host: String,
        /// The nodes that there are.
        nodes: String,
    },
}

/// The configuration in a file, and the name of this node in it: `node`, or the host's where that is absent. Warnings
/// go to the log.
///
/// # Errors
/// When the file cannot be read or has errors, or this is none of its nodes.
pub fn load(file: &Path, node: Option<&str>) -> Result<(Config, String), ConfigurationError> {
    let content =
        fs::read(file).map_err(|source| ConfigurationError::Read { file: file.to_owned(), source })?;
    let Checked { config, warnings } = Config::parse(file, &content).map_err(|problems| {
        ConfigurationError::Problems { problems: problems.render(io::stderr().is_terminal()) }
    })?;
    if !warnings.list().is_empty() {
        warn!("{}", warnings.render(false));
    }
    let name = match node {
        Some(name) if config.node(name).is_some() => name.to_owned(),
        Some(name) => {
            return Err(ConfigurationError::NoNode { name: name.to_owned(), nodes: names(&config) });
        }
        None => node_of_this_host(&config)?,
    };
    Ok((config, name))
}

fn node_of_this_host(config: &Config) -> Result<String, ConfigurationError> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = host.split('.').next().unwrap_or_default();
    match config.nodes.iter().find(|node| node.name == host || node.name == short) {
        Some(node) => Ok(node.name.clone()),
        None => Err(ConfigurationError::NoNodeHere { host, nodes: names(config) }),
    }
}

fn names(config: &Config) -> String {
    config.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ")
}
