//! The PDUs read back what they wrote, and nothing that comes makes the decoder fall over.
