//! The examples are the files beside this one.
