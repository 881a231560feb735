//! What operators touch: configuration, command line, status, events, metrics.

#![forbid(unsafe_code)]
