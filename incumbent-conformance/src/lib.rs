//! The numbered rules of incumbent as test cases for any backend.
