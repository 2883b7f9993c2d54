package dev.chagres.sharding;

/**
 * What the ranks along one dimension of a {@link Mesh} differ in.
 *
 * <p>Threading: immutable.
 */
public enum MeshDimension {
    /** Stages of the model, one after another. */
    PIPELINE,
    /** Copies of what the other dimensions leave of the model, with other data. */
    REPLICATE,
    /** Parts of each parameter and of the optimizer's state, with other data. */
    SHARD,
    /** Parts of the tokens of each micro-batch. */
    CONTEXT,
    /** Parts of each layer's matrices. */
    TENSOR
}
