//! Keys, key ring, authenticated encryption, HPKE envelopes. Pure: no I/O.
