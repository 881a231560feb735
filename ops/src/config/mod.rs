//! The configuration file: TOML in, every problem at once or a checked [`Config`] out.

mod model;

pub use model::{
    Address, Advertise, Allow, Chap, Cluster, Config, Connection, DiskOptions, Export, NetOptions, Node,
    OnIoError, Quorum, Resource, ResourceOptions, Tls, Volume,
};
