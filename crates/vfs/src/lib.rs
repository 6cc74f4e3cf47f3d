//! The small trait between engine and protocols: file handles, attributes, errors, one lock table.
