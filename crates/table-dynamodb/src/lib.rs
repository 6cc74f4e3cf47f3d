//! The table on Amazon DynamoDB: a leaf crate.
