package dev.chagres.model;

/**
 * How the weights of eight-bit products are kept.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code quantized_model_init}.
 */
public enum WeightStorage {
    /** In the model's type. A recipe keeps copies in eight bits beside that, and an optimizer FP32 masters. */
    MODEL_TYPE,
    /**
     * In eight bits, as the recipe casts them, from FP32 masters: {@link Parameter#weight} is the master, which optimizers update
     * and which begins as it was drawn, not rounded to the model's type. No copy in the model's type exists, so products need a
     * pass with {@code autocast}. Inputs, results and biases keep the model's type.
     *
     * <p>It applies to the weights of {@code Linear}s that a recipe covers by default: both sizes multiples of 16, no part of the
     * name {@code head}. A weight that another layer declared, such as a tied embedding's, keeps the model's type.
     */
    QUANTIZED,
    /**
     * In eight bits, and in nothing else: for evaluation, and for frozen weights of a model of which other parameters are trained. {@code
     * Quantizers.allocate} takes their memory and casts them one after another, as drawn in FP32. They have no gradient, and {@link
     * Parameter#weight} refuses; {@link Parameter#eightBits} has what there is. Products need a pass with {@code autocast}; a training
     * pass refuses a layer with such a weight that is not frozen, and so does an optimizer.
     *
     * <p>It applies to the same weights as {@link #QUANTIZED}.
     */
    QUANTIZED_ONLY
}
