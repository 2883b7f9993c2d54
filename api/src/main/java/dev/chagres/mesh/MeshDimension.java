package dev.chagres.mesh;

/**
 * What differs between the ranks along one dimension of a {@link Mesh}.
 *
 * <p>Threading: immutable.
 */
public enum MeshDimension {
    /** Stages of the model, one after another. */
    PIPELINE,
    /** Copies of the part of the model that the other dimensions leave, with different data. */
    REPLICATE,
    /** Parts of each parameter and of the optimizer's state, with different data. */
    SHARD,
    /** Parts of the tokens of each micro-batch. */
    CONTEXT,
    /** Parts of each layer's matrices. */
    TENSOR
}
