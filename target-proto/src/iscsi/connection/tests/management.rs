//! Task management.
