//! Identities that initiators see, derived and never stored: UUID version 5 (RFC 9562 5.5).
//!
//! Every node of a cluster derives the same ones, diskless ones too. They survive restarts and a change of the
//! Primary, and differ between clusters whose names are equal, because the secret takes part. What initiators see of
//! the secret is a hash of a hash; a random secret of 16 bytes or more cannot be guessed from it.

use block::VolumeNumber;
use uuid::Uuid;

use super::{
    model::{Cluster, Config},
    secret::Secret,
};

/// What the identifiers of a cluster's devices derive from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(Uuid);

impl Config {
    /// The identity of the cluster. `secret` is the content of `cluster.secret-file`, where there is one.
    #[must_use]
    pub fn identity(&self, secret: Option<&Secret>) -> Identity {
        self.cluster.identity(secret)
    }
}

impl Cluster {
    fn identity(&self, secret: Option<&Secret>) -> Identity {
        if let Some(id) = self.id {
            return Identity(id);
        }
        let name = Uuid::new_v5(&NAMESPACE, self.name.as_bytes());
        Identity(Uuid::new_v5(&name, secret.map_or(&[], Secret::bytes)))
    }
}

impl Identity {
    /// The cluster's own, which `cluster.id` can pin.
    #[must_use]
    pub const fn cluster(self) -> Uuid {
        self.0
    }

    /// That of a resource.
    #[must_use]
    pub fn resource(self, resource: &str) -> Uuid {
        Uuid::new_v5(&self.0, resource.as_bytes())
    }

    /// That of a volume, which serial number, NAA and NGUID derive from.
    #[must_use]
    pub fn volume(self, resource: &str, number: VolumeNumber) -> Uuid {
        Uuid::new_v5(&self.resource(resource), &number.0.to_be_bytes())
    }
}

/// Ours: version 5 of the URL of this project.
const NAMESPACE: Uuid = Uuid::from_u128(0x9d8e_64a3_6b1f_5b44_8a0b_6f0f_52f6_17c5);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn cluster(name: &str, id: Option<Uuid>) -> Cluster {
        Cluster { name: name.to_owned(), secret_file: None, id, tls: None }
    }

    fn secret(text: &str) -> Secret {
        Secret::cluster(text.as_bytes().to_vec(), 0o100_600).expect("long enough")
    }

    /// Roles and paths: unique per volume, different between clusters even where names are equal.
    #[test]
    fn no_two_volumes_share_an_identity() {
        let identities = [
            cluster("demo", None).identity(Some(&secret("0123456789abcdef"))),
            cluster("demo", None).identity(Some(&secret("0123456789abcdeF"))),
            cluster("other", None).identity(Some(&secret("0123456789abcdef"))),
            cluster("demo", None).identity(None),
        ];
        let mut seen = BTreeSet::new();
        for identity in identities {
            for resource in ["db", "db0", "mail"] {
                assert!(seen.insert(identity.resource(resource)));
                for number in [0, 1, 0x100, 0xffff] {
                    assert!(seen.insert(identity.volume(resource, VolumeNumber(number))));
                }
            }
        }
    }

    /// An identity that an initiator has seen stays: this value is part of the contract.
    #[test]
    fn identities_survive_a_new_version() {
        let identity = cluster("demo", None).identity(Some(&secret("0123456789abcdef")));
        assert_eq!(
            identity.volume("db", VolumeNumber(0)).to_string(),
            "45736b44-7f6a-5ce9-aa65-d8b506f0c9ec"
        );
    }

    /// A pinned identity survives a new secret and a new name.
    #[test]
    fn a_pinned_identity_stays() {
        let first = cluster("demo", None).identity(Some(&secret("0123456789abcdef")));
        let pinned =
            cluster("renamed", Some(first.cluster())).identity(Some(&secret("another secret, longer")));
        assert_eq!(first.volume("db", VolumeNumber(0)), pinned.volume("db", VolumeNumber(0)));
    }
}
