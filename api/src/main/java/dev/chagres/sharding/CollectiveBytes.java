package dev.chagres.sharding;

/**
 * How many bytes a {@link Strategy} has moved with each collective: the sum of the lengths of what was gathered, or was
 * reduced.
 *
 * <p>Threading: immutable.
 *
 * @param allGather weights, also those that ranks broadcast beside weights in eight bits
 * @param reduceScatter gradients of which each rank gets a part of the sum
 * @param allReduce gradients of which each rank gets the sum, and the largest magnitudes of recipes
 */
public record CollectiveBytes(long allGather, long reduceScatter, long allReduce) {}
