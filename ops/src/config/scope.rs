//! Reading one table of the file by its section of the catalogue, key by key, with every problem noted.

use std::{cell::RefCell, ops::Range};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    foreign::{FOREIGN, Standing},
    keys::{Key, SECTIONS, Section, WITHOUT_EFFECT},
    names,
    problem::Problems,
    values::Fault,
};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

/// One table of the file.
pub(super) struct Scope<'t> {
    section: &'static Section,
    table: &'t DeTable<'t>,
    /// Where the table stands: its header, or its braces.
    pub(super) span: Range<usize>,
    problems: &'t RefCell<Problems>,
}

impl<'t> Scope<'t> {
    /// Opens a table, and notes each key that the section does not have.
    pub(super) fn open(
        section: &'static Section,
        table: &'t DeTable<'t>,
        span: Range<usize>,
        problems: &'t RefCell<Problems>,
    ) -> Self {
        let scope = Self { section, table, span, problems };
        for (key, value) in table {
            if !section.keys.iter().any(|known| known.name == key.get_ref()) {
                scope.unknown(key, value);
            } else if WITHOUT_EFFECT.contains(&key.get_ref().as_ref()) {
                let message = format!("`{}` has no effect in this version", key.get_ref());
                scope.problems().warning(&key.span(), message, "do not count on it; the line may stay");
            }
        }
        scope
    }

    pub(super) fn problems(&self) -> std::cell::RefMut<'t, Problems> {
        self.problems.borrow_mut()
    }

    /// The value of a key, understood by `read`.
    pub(super) fn get<T>(
        &self,
        key: &str,
        read: impl FnOnce(&DeValue<'t>) -> Result<T, Fault>,
    ) -> Option<At<T>> {
        let value = self.raw(key)?;
        match read(value.get_ref()) {
            Ok(understood) => Some(At { value: understood, span: value.span() }),
            Err(fault) => {
                self.problems().error(&value.span(), fault.message, fault.help);
                None
            }
        }
    }

    /// The same, of a key that has to be there.
    pub(super) fn require<T>(
        &self,
        key: &str,
        read: impl FnOnce(&DeValue<'t>) -> Result<T, Fault>,
    ) -> Option<At<T>> {
        if self.raw(key).is_none() {
            self.missing(key);
        }
        self.get(key, read)
    }

    /// The value of a key where it is there and right, `fallback` otherwise.
    pub(super) fn or<T>(
        &self,
        key: &str,
        fallback: T,
        read: impl FnOnce(&DeValue<'t>) -> Result<T, Fault>,
    ) -> T {
        self.get(key, read).map_or(fallback, |at| at.value)
    }

    /// Whether the key is there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.raw(key).is_some()
    }

    /// The text of a key, where it has one, whether right or not.
    pub(super) fn peek(&self, key: &str) -> Option<&'t str> {
        self.raw(key)?.get_ref().as_str()
    }

    /// The keys of the table of a key, where it has one, whether right or not.
    pub(super) fn names(&self, key: &str) -> Option<Vec<At<&'t str>>> {
        let table = self.raw(key)?.get_ref().as_table()?;
        Some(table.keys().map(|name| At { value: name.get_ref().as_ref(), span: name.span() }).collect())
    }

    /// How many elements the array of a key has.
    pub(super) fn count(&self, key: &str) -> usize {
        self.raw(key).and_then(|value| value.get_ref().as_array()).map_or(0, |array| array.len())
    }

    /// Notes that a key has to be there.
    pub(super) fn missing(&self, key: &str) {
        let Key { takes, about, .. } = self.key(key);
        let place = if self.section.header.is_empty() { "the file" } else { self.section.header };
        self.problems().error(
            &self.span,
            format!("`{key}` is missing from {place}"),
            format!("add it ({takes}): {about}"),
        );
    }

    /// A table inside this one.
    pub(super) fn table(&self, key: &str, section: &'static Section) -> Option<Scope<'t>> {
        let value = self.raw(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::open(section, table, value.span(), self.problems)),
            other => {
                if key.starts_with("chap") {
                    self.problems().blot_out(&value.span());
                }
                let help = format!("write it as a table: {}", section.header);
                self.problems().error(&value.span(), wrong_type(key, "a table", other), help);
                None
            }
        }
    }

    /// The tables of an array of tables.
    pub(super) fn tables(&self, key: &str, section: &'static Section) -> Vec<Scope<'t>> {
        let Some(value) = self.raw(key) else { return Vec::new() };
        let help = format!("write each of them as {}", section.header);
        let DeValue::Array(array) = value.get_ref() else {
            self.problems().error(
                &value.span(),
                wrong_type(key, "an array of tables", value.get_ref()),
                help,
            );
            return Vec::new();
        };
        let mut scopes = Vec::with_capacity(array.len());
        for element in array {
            if let DeValue::Table(table) = element.get_ref() {
                scopes.push(Self::open(section, table, element.span(), self.problems));
            } else {
                self.problems().error(
                    &element.span(),
                    wrong_type(key, "a table", element.get_ref()),
                    help.clone(),
                );
            }
        }
        scopes
    }

    /// A list whose elements `read` understands.
    pub(super) fn list<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, Fault>,
    ) -> Option<At<Vec<At<T>>>> {
        let value = self.raw(key)?;
        let DeValue::Array(array) = value.get_ref() else {
            let help = format!("write a list: {key} = [\"...\"]");
            self.problems().error(&value.span(), wrong_type(key, "a list", value.get_ref()), help);
            return None;
        };
        let elements = array.iter().filter_map(|element| self.element(key, element, &read)).collect();
        Some(At { value: elements, span: value.span() })
    }

    /// A table of names and strings, each pair understood by `read`, with where the name stands.
    pub(super) fn map<T>(
        &self,
        key: &str,
        read: impl Fn(&str, &str) -> Result<T, Fault>,
    ) -> Vec<(At<String>, At<T>)> {
        let Some(value) = self.raw(key) else { return Vec::new() };
        let DeValue::Table(table) = value.get_ref() else {
            let help = format!("write {key} = {{ NODE = \"PATH\" }}");
            self.problems().error(&value.span(), wrong_type(key, "a table of paths", value.get_ref()), help);
            return Vec::new();
        };
        let pair = |(name, path): (&Spanned<_>, &_)| {
            let name: At<String> =
                At { value: AsRef::<str>::as_ref(name.get_ref()).to_owned(), span: name.span() };
            let path = self.element(key, path, &|text| read(&name.value, text))?;
            Some((name, path))
        };
        let mut pairs: Vec<_> = table.iter().filter_map(pair).collect();
        pairs.sort_by_key(|(name, _)| name.span.start);
        pairs
    }

    fn element<T>(
        &self,
        key: &str,
        element: &Spanned<DeValue<'t>>,
        read: &impl Fn(&str) -> Result<T, Fault>,
    ) -> Option<At<T>> {
        let understood = match element.get_ref() {
            DeValue::String(text) => read(text),
            other => Err(Fault::new(wrong_type(key, "a string", other), "write it in quotes")),
        };
        match understood {
            Ok(value) => Some(At { value, span: element.span() }),
            Err(fault) => {
                self.problems().error(&element.span(), fault.message, fault.help);
                None
            }
        }
    }

    fn raw(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        let name = self.key(key).name;
        self.table.iter().find(|(found, _)| found.get_ref() == name).map(|(_, value)| value)
    }

    fn key(&self, key: &str) -> &'static Key {
        let known = self.section.keys.iter().find(|known| known.name == key);
        known.expect("the parser asks for keys of the catalogue only")
    }

    fn unknown(&self, key: &Spanned<toml::de::DeString<'t>>, value: &Spanned<DeValue<'t>>) {
        let name: &str = key.get_ref();
        if names::sounds_secret(name) {
            self.problems().blot_out(&value.span());
            let message = format!("`{name}`: a secret is never in the configuration");
            self.problems().error(
                &key.span(),
                message,
                "put it into a file of mode 0600 and name that: secret-file = \"PATH\"",
            );
            return;
        }
        if let Some(foreign) =
            FOREIGN.iter().find(|foreign| foreign.name == name).filter(|_| self.is_resource())
        {
            let (message, help) = match foreign.standing {
                Standing::Meaningless(why) => {
                    let message = format!("DRBD's `{name}` has no effect here: {why}");
                    self.problems().warning(&key.span(), message, "the line can go");
                    return;
                }
                Standing::NotYet => (
                    format!("DRBD's `{name}` is not supported by this version"),
                    "remove the line, and do not count on it".to_owned(),
                ),
                Standing::Elsewhere(place) => {
                    (format!("`{name}` is spelled otherwise here"), format!("write {place}"))
                }
            };
            self.problems().error(&key.span(), message, help);
            return;
        }
        let place =
            if self.section.header.is_empty() { "at the top of the file" } else { self.section.header };
        self.problems().error(
            &key.span(),
            format!("there is no key `{name}` {}", within(place)),
            self.advice(name),
        );
    }

    /// What may have been meant by an unknown key.
    fn advice(&self, name: &str) -> String {
        if let Some(near) = names::nearest(name, self.section.keys.iter().map(|key| key.name)) {
            return format!("did you mean `{near}`?");
        }
        let everywhere =
            || SECTIONS.iter().flat_map(|section| section.keys.iter().map(|key| (key.name, section.header)));
        if let Some(near) = names::nearest(name, everywhere().map(|(key, _)| key))
            && let Some((key, header)) = everywhere().find(|(key, _)| *key == near)
        {
            return format!("`{key}` is a key of {header}");
        }
        let keys: Vec<&str> = self.section.keys.iter().map(|key| key.name).collect();
        format!("the keys here are {}", keys.join(", "))
    }

    fn is_resource(&self) -> bool {
        self.section.header.contains("resource")
    }
}

fn within(place: &str) -> String {
    if place.starts_with("at ") { place.to_owned() } else { format!("in {place}") }
}

fn wrong_type(key: &str, wanted: &str, found: &DeValue<'_>) -> String {
    let article = if matches!(found, DeValue::Integer(_) | DeValue::Array(_)) { "an" } else { "a" };
    format!("`{key}` takes {wanted}, not {article} {}", found.type_str())
}
