//! Logins, right and wrong.
