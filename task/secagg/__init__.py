"""Secure aggregation: the server learns a sum over nodes, and of a single node nothing more than that.

Bonawitz et al., CCS 2017, ePrint 2017/281, in its form for a server that may lie about who has dropped out.
Four stages, one message to each node and one back:

=========  ===========================================  =====================================================
stage      what goes down                               what comes up
=========  ===========================================  =====================================================
keys       the session                                  two fresh public keys
shares     the roster: all nodes' public keys          Shamir shares of the node's two secrets, encrypted
                                                        for each other node
masked     who sent shares                              the node's numbers + its own mask + or - one mask for
                                                        each other node, modulo 2^96
unmask     who sent numbers, the shares for this node   of each node that did, a share of its own mask's
                                                        seed; of each that did not, one of its mask key
=========  ===========================================  =====================================================

`node` has the node's steps, `server` the server's, `vector` what is masked, `primitives` and `shamir` the
cryptography. Nothing here knows Flower, arrays by name, or clients.
"""
