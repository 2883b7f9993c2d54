package dev.chagres.sharding;

/**
 * The bytes that a {@link Strategy} has moved with each collective: the sum of the lengths of the gathered or reduced tensors.
 *
 * <p>Threading: immutable.
 *
 * @param allGather weights, including those that ranks broadcast together with weights in eight bits
 * @param reduceScatter gradients of which each rank gets a part of the sum
 * @param allReduce gradients of which each rank gets the sum, and the amaxes of recipes
 */
public record CollectiveBytes(long allGather, long reduceScatter, long allReduce) {}
