//! Who is registered for a volume and who holds it, and what each request makes of that (SPC-4 5.13).

use super::super::sense::Additional;
use super::{Access, Conflict, Consequences, Key, Refusal, Registrant, ReservationType};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) registrant: Registrant,
    pub(super) key: Key,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) kind: ReservationType,
    /// Who holds it. Of an all-registrants reservation every registrant does, whoever made it.
    pub(super) holder: Registrant,
}

/// The registrations and the reservation of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    pub(super) generation: u32,
    pub(super) persistent: bool,
    pub(super) registrations: Vec<Registration>,
    pub(super) reservation: Option<Reservation>,
}

impl Registry {
    /// PRGENERATION: how often the registrations changed.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether the last registration asked that all this outlive a loss of power.
    #[must_use]
    pub const fn persistent(&self) -> bool {
        self.persistent
    }

    /// Whether nobody is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty()
    }

    /// Every registrant with its key and whether it holds the reservation.
    pub fn registrants(&self) -> impl Iterator<Item = (&Registrant, Key, bool)> {
        self.registrations.iter().map(|entry| (&entry.registrant, entry.key, self.holds(&entry.registrant)))
    }

    /// The reservation's type and the holder's key, which is 0 where all registrants hold it.
    #[must_use]
    pub fn reservation(&self) -> Option<(ReservationType, Key)> {
        let reservation = self.reservation.as_ref()?;
        let key = if reservation.kind.all_registrants() { None } else { self.key(&reservation.holder) };
        Some((reservation.kind, key.unwrap_or_default()))
    }

    /// Whether `who` may do this (SPC-4 table 66).
    ///
    /// # Errors
    /// When a reservation forbids it.
    pub fn check(&self, who: &Registrant, access: Access) -> Result<(), Conflict> {
        let Some(reservation) = &self.reservation else { return Ok(()) };
        let entitled =
            if reservation.kind.shared() { self.key(who).is_some() } else { reservation.holder == *who };
        if entitled || !reservation.kind.forbids(access) { Ok(()) } else { Err(Conflict) }
    }

    /// REGISTER: `key` is what `who` is registered with now, `new` what it will be; 0 is none.
    ///
    /// # Errors
    /// When `key` is wrong, or the registry is full.
    pub fn register(
        &mut self,
        who: &Registrant,
        key: Key,
        new: Key,
        persistent: bool,
    ) -> Result<Consequences, Refusal> {
        if self.key(who).unwrap_or_default() != key {
            return Err(Refusal::Conflict);
        }
        self.register_and_ignore(who, new, persistent)
    }

    /// REGISTER AND IGNORE EXISTING KEY.
    ///
    /// # Errors
    /// When the registry is full.
    pub fn register_and_ignore(
        &mut self,
        who: &Registrant,
        new: Key,
        persistent: bool,
    ) -> Result<Consequences, Refusal> {
        let at = self.position(who);
        let mut consequences = Consequences::default();
        match at {
            None if new == Key(0) => return Ok(consequences),
            None => self.add(who, new)?,
            Some(at) if new == Key(0) => consequences.attentions = self.remove(at),
            Some(at) => self.registrations[at].key = new,
        }
        self.persistent = persistent;
        self.changed();
        Ok(consequences)
    }

    /// REGISTER with `SPEC_I_PT`: registers `others` along with `who`, all of them or none.
    ///
    /// # Errors
    /// When `who` is registered already, one of them is, or the registry is full.
    pub fn register_others(
        &mut self,
        who: &Registrant,
        others: &[Registrant],
        new: Key,
        persistent: bool,
    ) -> Result<Consequences, Refusal> {
        if self.key(who).is_some() || others.iter().any(|other| self.key(other).is_some()) {
            return Err(Refusal::Conflict);
        }
        let mut next = self.clone();
        next.add(who, new)?;
        for other in others.iter().filter(|other| *other != who) {
            if next.key(other).is_none() {
                next.add(other, new)?;
            }
        }
        next.persistent = persistent;
        next.changed();
        *self = next;
        Ok(Consequences::default())
    }

    /// REGISTER AND MOVE: `to` becomes registered with `new` and takes the reservation over.
    ///
    /// # Errors
    /// When `who` is not the holder with `key`, or `to` is `who`.
    pub fn register_and_move(
        &mut self,
        who: &Registrant,
        key: Key,
        to: &Registrant,
        new: Key,
        unregister: bool,
        persistent: bool,
    ) -> Result<Consequences, Refusal> {
        let at = self.authorise(who, key)?;
        let kind = self.reservation.as_ref().map(|reservation| reservation.kind);
        if !self.holds(who) || kind.is_none_or(ReservationType::all_registrants) {
            return Err(Refusal::Conflict);
        }
        if new == Key(0) || to == who {
            return Err(Refusal::InvalidParameter);
        }
        match self.position(to) {
            Some(at) => self.registrations[at].key = new,
            None => self.add(to, new)?,
        }
        self.reservation = kind.map(|kind| Reservation { kind, holder: to.clone() });
        if unregister {
            self.registrations.remove(at);
        }
        self.persistent = persistent;
        self.changed();
        Ok(Consequences::default())
    }

    /// RESERVE.
    ///
    /// # Errors
    /// When `who` is not registered with `key`, or the volume is reserved otherwise.
    pub fn reserve(&mut self, who: &Registrant, key: Key, kind: ReservationType) -> Result<(), Refusal> {
        self.authorise(who, key)?;
        match &self.reservation {
            None => {
                self.reservation = Some(Reservation { kind, holder: who.clone() });
                Ok(())
            }
            Some(reservation) if self.holds(who) && reservation.kind == kind => Ok(()),
            Some(_) => Err(Refusal::Conflict),
        }
    }

    /// RELEASE.
    ///
    /// # Errors
    /// When `who` is not registered with `key`, or holds a reservation of another type.
    pub fn release(
        &mut self,
        who: &Registrant,
        key: Key,
        kind: ReservationType,
    ) -> Result<Consequences, Refusal> {
        self.authorise(who, key)?;
        let mut consequences = Consequences::default();
        let Some(reservation) = &self.reservation else { return Ok(consequences) };
        if !self.holds(who) {
            return Ok(consequences);
        }
        if reservation.kind != kind {
            return Err(Refusal::InvalidRelease);
        }
        self.reservation = None;
        if kind.shared() {
            consequences.attentions = self.tell_others(who, Additional::RESERVATIONS_RELEASED);
        }
        Ok(consequences)
    }

    /// CLEAR.
    ///
    /// # Errors
    /// When `who` is not registered with `key`.
    pub fn clear(&mut self, who: &Registrant, key: Key) -> Result<Consequences, Refusal> {
        self.authorise(who, key)?;
        let attentions = self.tell_others(who, Additional::RESERVATIONS_PREEMPTED);
        self.registrations.clear();
        self.reservation = None;
        self.changed();
        Ok(Consequences { attentions, preempted: Vec::new() })
    }

    /// PREEMPT (SPC-4 5.13.11.2): takes the registration from those with the key `victim`, and the reservation
    /// where one of them holds it; then `who` holds one of the type `kind`. The victim 0 is everybody else where all
    /// registrants hold the reservation.
    ///
    /// # Errors
    /// When `who` is not registered with `key`, nobody is with `victim`, or a type is needed and there is none.
    pub fn preempt(
        &mut self,
        who: &Registrant,
        key: Key,
        victim: Key,
        kind: Option<ReservationType>,
    ) -> Result<Consequences, Refusal> {
        self.authorise(who, key)?;
        let takes = match &self.reservation {
            Some(reservation) if reservation.kind.all_registrants() => victim == Key(0),
            Some(_) if victim == Key(0) => return Err(Refusal::InvalidParameter),
            Some(reservation) => self.key(&reservation.holder) == Some(victim),
            None => false,
        };
        let kind = if takes { Some(kind.ok_or(Refusal::InvalidType)?) } else { None };
        self.preempt_registrations(who, |entry| takes && victim == Key(0) || entry.key == victim, kind)
    }

    /// Removes whom `is_victim` names, but never `who`; then `who` reserves with the type `reserve`.
    fn preempt_registrations(
        &mut self,
        who: &Registrant,
        is_victim: impl Fn(&Registration) -> bool,
        reserve: Option<ReservationType>,
    ) -> Result<Consequences, Refusal> {
        let was = self.reservation.as_ref().map(|reservation| reservation.kind);
        if reserve.is_none() && !self.registrations.iter().any(&is_victim) {
            return Err(Refusal::Conflict);
        }
        let mut consequences = Consequences::default();
        self.registrations.retain(|entry| {
            let stays = entry.registrant == *who || !is_victim(entry);
            if !stays {
                consequences.preempted.push(entry.registrant.clone());
            }
            stays
        });
        for victim in &consequences.preempted {
            consequences.attentions.push((victim.clone(), Additional::REGISTRATIONS_PREEMPTED));
        }
        if let Some(kind) = reserve {
            self.reservation = Some(Reservation { kind, holder: who.clone() });
            if was.is_some_and(|was| was != kind) {
                consequences.attentions.extend(self.tell_others(who, Additional::RESERVATIONS_RELEASED));
            }
        }
        self.changed();
        Ok(consequences)
    }

    /// Whether `who` holds the reservation.
    #[must_use]
    pub fn holds(&self, who: &Registrant) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| {
            if reservation.kind.all_registrants() {
                self.key(who).is_some()
            } else {
                reservation.holder == *who
            }
        })
    }

    /// The key that `who` is registered with.
    #[must_use]
    pub fn key(&self, who: &Registrant) -> Option<Key> {
        self.position(who).map(|at| self.registrations[at].key)
    }

    fn position(&self, who: &Registrant) -> Option<usize> {
        self.registrations.iter().position(|entry| entry.registrant == *who)
    }

    fn authorise(&self, who: &Registrant, key: Key) -> Result<usize, Refusal> {
        match self.position(who) {
            Some(at) if self.registrations[at].key == key => Ok(at),
            _ => Err(Refusal::Conflict),
        }
    }

    fn add(&mut self, who: &Registrant, key: Key) -> Result<(), Refusal> {
        if self.registrations.len() >= REGISTRATIONS_MAX {
            return Err(Refusal::Full);
        }
        self.registrations.push(Registration { registrant: who.clone(), key });
        Ok(())
    }

    /// Removes a registration, and with it the reservation where nobody is left to hold it (SPC-4 5.13.11.1.3).
    fn remove(&mut self, at: usize) -> Vec<(Registrant, Additional)> {
        let gone = self.registrations.remove(at).registrant;
        let Some(reservation) = &self.reservation else { return Vec::new() };
        let kind = reservation.kind;
        let orphaned =
            if kind.all_registrants() { self.registrations.is_empty() } else { reservation.holder == gone };
        if !orphaned {
            return Vec::new();
        }
        self.reservation = None;
        if kind.shared() { self.tell_others(&gone, Additional::RESERVATIONS_RELEASED) } else { Vec::new() }
    }

    fn tell_others(&self, who: &Registrant, condition: Additional) -> Vec<(Registrant, Additional)> {
        let others = self.registrations.iter().filter(|entry| entry.registrant != *who);
        others.map(|entry| (entry.registrant.clone(), condition)).collect()
    }

    const fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

/// How many initiator ports may register for one volume.
pub const REGISTRATIONS_MAX: usize = 256;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn registrant(name: &str) -> Registrant {
        Registrant { initiator: format!("iqn.test:{name},i,0x00023d000001"), port: 1 }
    }

    /// A registry where the holder has key 1, a registrant key 2, and a stranger none.
    pub(in super::super) fn reserved(kind: ReservationType) -> (Registry, [Registrant; 3]) {
        let who = ["holder", "registrant", "stranger"].map(registrant);
        let mut registry = Registry::default();
        registry.register(&who[0], Key(0), Key(1), false).unwrap();
        registry.register(&who[1], Key(0), Key(2), false).unwrap();
        registry.reserve(&who[0], Key(1), kind).unwrap();
        (registry, who)
    }

    /// SPC-4 table 66, whole: each type, each kind of command, each kind of nexus.
    #[test]
    fn the_conflict_table() {
        use ReservationType::{
            ExclusiveAccess, ExclusiveAccessAllRegistrants, ExclusiveAccessRegistrantsOnly, WriteExclusive,
            WriteExclusiveAllRegistrants, WriteExclusiveRegistrantsOnly,
        };
        // Of each type: may a registrant read, write; may a stranger read, write.
        let table = [
            (WriteExclusive, [true, false, true, false]),
            (ExclusiveAccess, [false, false, false, false]),
            (WriteExclusiveRegistrantsOnly, [true, true, true, false]),
            (ExclusiveAccessRegistrantsOnly, [true, true, false, false]),
            (WriteExclusiveAllRegistrants, [true, true, true, false]),
            (ExclusiveAccessAllRegistrants, [true, true, false, false]),
        ];
        for (kind, may) in table {
            let (registry, who) = reserved(kind);
            for access in [Access::Any, Access::Read, Access::Write] {
                assert_eq!(registry.check(&who[0], access), Ok(()), "{kind:?} holder {access:?}");
            }
            let others = [(1, Access::Read), (1, Access::Write), (2, Access::Read), (2, Access::Write)];
            for ((nexus, access), may) in others.into_iter().zip(may) {
                assert_eq!(registry.check(&who[nexus], access).is_ok(), may, "{kind:?} {nexus} {access:?}");
                assert_eq!(registry.check(&who[nexus], Access::Any), Ok(()));
            }
        }
    }

    /// SPC-4 5.13.7: the key says whether a request is from who it should be.
    #[test]
    fn a_wrong_key_conflicts() {
        let (mut registry, who) = reserved(ReservationType::WriteExclusive);
        let before = registry.clone();
        let kind = ReservationType::WriteExclusive;
        assert_eq!(registry.register(&who[0], Key(9), Key(3), false), Err(Refusal::Conflict));
        assert_eq!(registry.register(&who[2], Key(1), Key(3), false), Err(Refusal::Conflict));
        assert_eq!(registry.reserve(&who[2], Key(1), kind), Err(Refusal::Conflict));
        assert_eq!(registry.reserve(&who[1], Key(2), kind), Err(Refusal::Conflict));
        assert_eq!(registry.release(&who[1], Key(1), kind), Err(Refusal::Conflict));
        assert_eq!(registry.clear(&who[2], Key(2)), Err(Refusal::Conflict));
        assert_eq!(registry.preempt(&who[1], Key(2), Key(7), Some(kind)), Err(Refusal::Conflict));
        assert_eq!(registry, before);
    }

    /// SPC-4 5.13.11: who may release, what is left, and who is told.
    #[test]
    fn release_and_unregister() {
        for kind in ReservationType::ALL {
            let (mut registry, who) = reserved(kind);
            let generation = registry.generation();
            let other = ReservationType::ALL.into_iter().find(|other| *other != kind).unwrap();
            assert_eq!(registry.release(&who[0], Key(1), other), Err(Refusal::InvalidRelease));
            let told = registry.release(&who[0], Key(1), kind).unwrap().attentions;
            let expected = kind.shared().then(|| (who[1].clone(), Additional::RESERVATIONS_RELEASED));
            assert_eq!(told, expected.into_iter().collect::<Vec<_>>());
            assert_eq!((registry.reservation(), registry.generation()), (None, generation));

            let (mut registry, who) = reserved(kind);
            registry.register(&who[0], Key(1), Key(0), false).unwrap();
            assert_eq!(registry.reservation().is_some(), kind.all_registrants(), "{kind:?}");
            assert_eq!(registry.generation(), generation + 1);
        }
    }

    /// SPC-4 5.13.11.2: the holder preempted, another registrant preempted, all of them, and oneself.
    #[test]
    fn preempt() {
        let kind = ReservationType::ExclusiveAccess;
        let (mut registry, who) = reserved(ReservationType::WriteExclusiveRegistrantsOnly);
        let consequences = registry.preempt(&who[1], Key(2), Key(1), Some(kind)).unwrap();
        assert_eq!(consequences.preempted, [who[0].clone()]);
        assert_eq!(consequences.attentions, [(who[0].clone(), Additional::REGISTRATIONS_PREEMPTED)]);
        assert_eq!(registry.reservation(), Some((kind, Key(2))));
        assert!(registry.holds(&who[1]) && registry.key(&who[0]).is_none());

        let (mut registry, who) = reserved(kind);
        registry.preempt(&who[0], Key(1), Key(2), None).unwrap();
        assert_eq!(
            registry.reservation(),
            Some((kind, Key(1))),
            "the type stays when no holder is preempted"
        );
        assert!(registry.key(&who[1]).is_none());

        let (mut registry, who) = reserved(ReservationType::WriteExclusiveAllRegistrants);
        assert_eq!(registry.preempt(&who[1], Key(2), Key(0), None), Err(Refusal::InvalidType));
        registry.preempt(&who[1], Key(2), Key(0), Some(kind)).unwrap();
        assert_eq!(registry.reservation(), Some((kind, Key(2))));
        assert!(registry.holds(&who[1]) && registry.key(&who[0]).is_none());

        let (mut registry, who) = reserved(kind);
        assert_eq!(registry.preempt(&who[0], Key(1), Key(0), Some(kind)), Err(Refusal::InvalidParameter));
        let consequences = registry.preempt(&who[0], Key(1), Key(1), Some(kind)).unwrap();
        assert_eq!(consequences, Consequences::default());
        assert!(registry.holds(&who[0]));
    }

    /// SPC-4 5.13.8: the reservation goes to another port, with or without its giver.
    #[test]
    fn register_and_move() {
        for unregister in [false, true] {
            let (mut registry, who) = reserved(ReservationType::WriteExclusive);
            registry.register_and_move(&who[0], Key(1), &who[2], Key(3), unregister, false).unwrap();
            assert_eq!(registry.reservation(), Some((ReservationType::WriteExclusive, Key(3))));
            assert_eq!(registry.key(&who[0]).is_none(), unregister);
        }
        let (mut registry, who) = reserved(ReservationType::WriteExclusiveAllRegistrants);
        let refused = registry.register_and_move(&who[0], Key(1), &who[2], Key(3), false, false);
        assert_eq!(refused, Err(Refusal::Conflict));
        let (mut registry, who) = reserved(ReservationType::WriteExclusive);
        let refused = registry.register_and_move(&who[0], Key(1), &who[0], Key(3), false, false);
        assert_eq!(refused, Err(Refusal::InvalidParameter));
    }

    /// Memory is bounded whoever registers, and a refusal changes nothing (bug 54 of the list of others' bugs).
    #[test]
    fn registrations_are_bounded() {
        let mut registry = Registry::default();
        for n in 0..REGISTRATIONS_MAX {
            registry.register(&registrant(&n.to_string()), Key(0), Key(1), false).unwrap();
        }
        let before = registry.clone();
        assert_eq!(registry.register(&registrant("late"), Key(0), Key(1), false), Err(Refusal::Full));
        let others = [registrant("a"), registrant("b")];
        assert_eq!(registry.register_others(&registrant("c"), &others, Key(1), false), Err(Refusal::Full));
        assert_eq!(registry, before);
    }
}
