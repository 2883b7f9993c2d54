package dev.chagres.sharding;

import dev.chagres.Event;
import dev.chagres.Stream;

/**
 * The streams and memory of gathers.
 *
 * <p>Threading: immutable.
 *
 * @param ranks that have a part each
 * @param compute the stream of layers
 * @param gathers the stream on which weights travel
 * @param stepped recorded on the stream of layers once the parts were written
 * @param reshard when gathered weights are resharded
 */
record GatherStreams(GatherRanks ranks, Stream compute, Stream gathers, Event stepped, Reshard reshard) {}
