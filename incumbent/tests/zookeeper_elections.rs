//! Candidates on a real ZooKeeper that operators, outages and other programs interfere with.
#![cfg(feature = "zookeeper")]

mod zookeeper_elections {
    mod ensemble;
    mod outages;
    mod queue;
    mod support;
}
