package dev.chagres.parameter;

/**
 * How the weights of eight-bit products are kept.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code quantized_model_init}.
 */
public enum WeightStorage {
    /** In the model's type. A recipe keeps additional copies in eight bits, and an optimizer keeps FP32 masters. */
    MODEL_TYPE,
    /**
     * In eight bits, as the recipe casts them, from FP32 masters: {@link Parameter#weight} is the master, which optimizers update and whose
     * initial values are not rounded to the model's type. No copy in the model's type exists, so products need a pass with {@code
     * autocast}. Inputs, results and biases keep the model's type.
     *
     * <p>It applies to the weights of {@code Linear}s that a recipe covers by default: both sizes multiples of 16, no part of the name
     * equal to {@code head}. A weight that another layer declared, such as a tied embedding's, keeps the model's type.
     */
    QUANTIZED,
    /**
     * In eight bits alone: for evaluation, and for frozen weights of a model whose other parameters are trained. {@code
     * Quantizers.allocate} allocates their memory and casts their initial FP32 values, one weight after another. They have no gradient, and
     * {@link Parameter#weight} throws; {@link Parameter#quantized} returns the copies. Products need a pass with {@code autocast}; a
     * training pass refuses a layer with such a weight that is not frozen, and so does an optimizer.
     *
     * <p>It applies to the same weights as {@link #QUANTIZED}.
     */
    QUANTIZED_ONLY
}
