package dev.chagres.sharding;

import dev.chagres.Event;
import dev.chagres.Stream;
import dev.chagres.nccl.Communicator;

/**
 * Where weights are gathered.
 *
 * <p>Threading: immutable.
 *
 * @param communicator of the ranks that have a part each
 * @param compute the stream of layers
 * @param gathers the stream on which weights travel
 * @param stepped recorded on the stream of layers once the parts were written
 */
record GatherStreams(Communicator communicator, Stream compute, Stream gathers, Event stepped) {}
