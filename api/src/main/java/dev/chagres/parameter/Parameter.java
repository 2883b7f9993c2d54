package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.te.Output;
import org.jspecify.annotations.Nullable;

// Over 400 lines: 140 are Javadoc and imports, and most methods have one line. Parameters owns the memory.

/**
 * One named parameter of a layer: its shape and initializer, and, once {@link Parameters} has allocated memory for it, its weight and
 * gradient.
 *
 * <p>A gradient belongs to one step: the first backward pass of the step writes it, later ones add to it ({@link #nextGradient}). So tied
 * weights, layers that are used twice and micro-batches need no call of their own.
 *
 * <p>Threading: the device's thread.
 */
public final class Parameter {
    private static final int NEVER = -1;

    private final String name;
    private final Shape shape;
    private final Initializer initializer;
    private final @Nullable DType ownType;
    /** Null if this rank has the whole parameter. */
    private final @Nullable ParameterSplit split;

    private final boolean partial;
    private boolean frozen;
    /** Whether several stages of a pipeline have the parameter. */
    private boolean tied;

    private boolean writtenByProducts;
    private WeightStorage storage = WeightStorage.MODEL_TYPE;
    private int group;
    private @Nullable DType placedType;
    private long weightOffset;
    private long gradientOffset;
    private @Nullable Parameters owner;
    private @Nullable Tensor weight;
    private @Nullable QuantizedWeight quantized;
    private @Nullable Tensor gradient;
    private int weightIssue;
    private int gradientIssue;
    /** The owner's generation in which the gradient was written last. */
    private int written = NEVER;

    Parameter(
            String name,
            Shape shape,
            Initializer initializer,
            @Nullable DType ownType,
            @Nullable ParameterSplit split,
            boolean partial) {
        this.name = name;
        this.shape = shape;
        this.initializer = initializer;
        this.ownType = ownType;
        this.split = split;
        this.partial = partial;
    }

    /** Returns the full name, such as {@code layers.0.attention.qkv.linear.weight}. */
    public String name() {
        return name;
    }

    /** Returns the shape of this rank's part of the parameter. */
    public Shape shape() {
        return shape;
    }

    /** Returns which part of the parameter this tensor-parallel rank keeps; null if it keeps all. */
    public @Nullable ParameterSplit split() {
        return split;
    }

    /** Returns the shape of the whole parameter, of which tensor-parallel ranks may keep a part each. */
    public Shape wholeShape() {
        return split == null ? shape : split.whole();
    }

    /** Returns whether the gradient is the sum over tensor-parallel ranks of the terms that each computes. */
    boolean isPartial() {
        return partial;
    }

    /** Marks the parameter as one that several stages of a pipeline have, over which the gradient is summed. */
    void tie() {
        tied = true;
    }

    /** Marks the gradient as one that only matrix products write. */
    void writeByProducts() {
        writtenByProducts = true;
    }

    /** Returns whether only matrix products write the gradient; they can also write it in the weight's type. */
    public boolean isWrittenByProducts() {
        return writtenByProducts;
    }

    /** Returns the initializer. */
    public Initializer initializer() {
        return initializer;
    }

    /** Returns the type that was declared for this parameter, or null if it has the model's type. */
    public @Nullable DType ownType() {
        return ownType;
    }

    /** Returns whether weight decay applies: it does to matrices, not to biases and norms. */
    public boolean decays() {
        return shape.rank() >= 2;
    }

    /** Returns whether the parameter is never trained: it then has no gradient. */
    public boolean isFrozen() {
        return frozen;
    }

    /** Returns whether the parameter has a gradient: it is not frozen, and not kept in eight bits alone. */
    public boolean isTrained() {
        return !frozen && !isQuantizedOnly();
    }

    /** Returns whether the weight is kept {@link WeightStorage#QUANTIZED_ONLY}. */
    public boolean isQuantizedOnly() {
        return storage == WeightStorage.QUANTIZED_ONLY;
    }

    /**
     * Leaves the parameter out of training: it gets no gradient memory, and no product is computed for its gradient.
     *
     * @throws IllegalStateException when it has memory already
     */
    public void freeze() {
        if (hasMemory()) {
            throw new IllegalStateException("parameter " + name
                    + " has memory already: freeze it before Parameters.allocate, which lays the gradients out");
        }
        frozen = true;
    }

    /**
     * Returns the weight, or its FLOAT32 master where it is kept {@link WeightStorage#QUANTIZED}. Call {@link Parameters#changed}
     * after a kernel of your own wrote to it.
     *
     * @throws IllegalStateException before {@link Parameters#allocate}, when the memory is gone, or when the weight is kept {@link
     *     WeightStorage#QUANTIZED_ONLY}
     */
    public Tensor weight() {
        return weight(GradientOwner.THIS_CALL);
    }

    /**
     * For sharding: returns the weight as {@link #weight()} does, to a layer's call of which {@code writer} writes the gradient.
     *
     * @throws IllegalStateException as {@link #weight()} does
     */
    public Tensor weight(GradientOwner writer) {
        Parameters present = owner;
        if (present != null) {
            if (!present.isOpen()) {
                throw new IllegalStateException(
                        "parameter " + name + " has lost its memory: its Parameters are closed, or"
                                + " the strategy that allocated them is; allocate others");
            }
            ParameterHooks use = present.use();
            if (use != null) {
                use.reading(this, writer);
            }
        }
        return unreadWeight();
    }

    /**
     * Returns the weight for callers that read its type and device, but not its elements.
     *
     * @throws IllegalStateException as {@link #weight} does
     */
    public Tensor unreadWeight() {
        Tensor present = weight;
        if (present == null) {
            ensureNotQuantizedOnly("no weight of 16 or 32 bits", "use Parameter.quantized");
            throw new IllegalStateException("parameter " + name + " has no memory yet: call Parameters.allocate");
        }
        ensureOwn(present, weightIssue);
        return present;
    }

    /** Returns how the weight is kept, as chosen in {@link Parameters#allocate}. */
    public WeightStorage storage() {
        return storage;
    }

    /**
     * Returns the weight that is kept {@link WeightStorage#QUANTIZED_ONLY}, to read it or to cast other values into it.
     *
     * @throws IllegalStateException when it is kept otherwise, or no quantizers have been allocated yet
     */
    public QuantizedWeight quantized() {
        QuantizedWeight present = quantized;
        if (present == null) {
            throw new IllegalStateException(
                    isQuantizedOnly()
                            ? "parameter " + name + " has no memory yet: it is kept QUANTIZED_ONLY, so call"
                                    + " Quantizers.allocate, which says how it is cast"
                            : "parameter " + name + " is kept " + storage
                                    + ", not QUANTIZED_ONLY; use Parameter.weight");
        }
        return present;
    }

    /**
     * For recipes: sets the copies in eight bits. This may be called once.
     *
     * @throws IllegalStateException when the weight is kept otherwise, or has copies already
     */
    public void hold(QuantizedWeight newWeight) {
        Checks.given("newWeight", newWeight);
        if (!isQuantizedOnly() || isHeld()) {
            throw new IllegalStateException(
                    "parameter " + name + ": expected one that is kept QUANTIZED_ONLY and lies nowhere yet");
        }
        quantized = newWeight;
    }

    /** Returns whether quantizers hold the weight, or held it until they were closed. */
    public boolean isHeld() {
        return quantized != null;
    }

    /**
     * Returns the gradient, FLOAT32, or as {@link ModelPlan#productGradients} says. For parameters that a strategy shards, the whole gradient exists from a step's first backward call
     * that writes it until ranks sum it; if ranks sum in the weight's type, a gradient that {@link #isWrittenByProducts} has that type.
     * {@link Parameters#gradients} has the rank's part of the sum, always FLOAT32.
     *
     * @throws IllegalStateException before {@link Parameters#allocate}, when the memory is gone, when the parameter is frozen or kept
     *     {@link WeightStorage#QUANTIZED_ONLY}, or when it is sharded and this rank does not have the whole gradient
     */
    public Tensor gradient() {
        Tensor present = gradient;
        if (present == null) {
            ensureNotQuantizedOnly("no gradient", "freeze it, or allocate with WeightStorage.QUANTIZED");
            throw new IllegalStateException(whyNoGradient());
        }
        ensureOwn(present, gradientIssue);
        return present;
    }

    private String whyNoGradient() {
        if (frozen && weight != null) {
            return "parameter " + name + " is frozen: it has no gradient";
        }
        return owner != null && owner.access().shard() != null
                ? "gradient of " + name
                        + ": sharded among ranks, it exists only from a backward call until it is reduced; read this"
                        + " rank's shard in Parameters.gradients()"
                : "parameter " + name + " has no memory yet: call Parameters.allocate";
    }

    /**
     * Announces that a backward pass writes the gradient now, and returns how: {@link Output#OVERWRITE} for the first one of this step,
     * {@link Output#ADD} for later ones.
     *
     * @throws IllegalStateException when the gradient was summed over ranks in this step
     */
    public Output nextGradient() {
        Parameters present = owner();
        ensureNotQuantizedOnly("no gradient", "freeze it, or allocate with WeightStorage.QUANTIZED");
        ParameterHooks use = present.use();
        if (use != null) {
            use.writing(this);
        }
        if (partial || tied) {
            present.ensureUnsummed(this);
        }
        CapturedGradients captured = CapturedGradients.of(present);
        if (captured != null) {
            captured.write(this);
        } else {
            present.changeGradients();
        }
        if (written == present.generation()) {
            return Output.ADD;
        }
        written = present.generation();
        return Output.OVERWRITE;
    }

    /** Returns whether a backward pass of this step has written the gradient. */
    public boolean hasGradient() {
        return owner != null && written == owner.generation();
    }

    /**
     * Returns the {@link Parameters} that own this one's memory.
     *
     * @throws IllegalStateException before {@link Parameters#allocate}
     */
    public Parameters owner() {
        Parameters present = owner;
        if (present == null) {
            throw new IllegalStateException("parameter " + name + " has no memory yet: call Parameters.allocate");
        }
        return present;
    }

    /** Enqueues zeroing of the gradient if no backward pass of this step has written it. */
    void completeGradient(Stream stream) {
        if (!isTrained()) {
            return;
        }
        CapturedGradients captured = CapturedGradients.of(owner());
        if (captured != null) {
            captured.read(this);
        }
        if (!hasGradient()) {
            written = owner().generation();
            gradient().zero(stream);
        }
    }

    /** Returns the index of its group in {@link ParameterAccess#groups}, once it has memory. */
    public int group() {
        return group;
    }

    void group(int newGroup) {
        group = newGroup;
    }

    /** Sets the place of the whole weight and gradient in the vectors of the whole model, whether this rank has them or not. */
    void lie(ParameterLayout.Place place) {
        placedType = place.dtype();
        weightOffset = place.weight();
        gradientOffset = place.gradient();
    }

    @Nullable
    DType placedType() {
        return placedType;
    }

    long weightOffset() {
        return weightOffset;
    }

    long gradientOffset() {
        return gradientOffset;
    }

    void lendWeight(Parameters lender, Tensor newWeight) {
        owner = lender;
        weight = newWeight;
        weightIssue = Inside.issue(newWeight);
    }

    void lendGradient(Tensor newGradient) {
        gradient = newGradient;
        gradientIssue = Inside.issue(newGradient);
        written = NEVER;
    }

    void takeBackGradient() {
        gradient = null;
    }

    /** Sets the owner's generation in which the gradient was written last. */
    void written(int generation) {
        written = generation;
    }

    /** Marks the gradient as not written in this step. */
    void forgetGradient() {
        written = NEVER;
    }

    /** Returns whether an open {@link Parameters} has given this one memory. */
    public boolean hasMemory() {
        return isQuantizedOnly() ? owner != null && owner.isOpen() : weight != null && weight.isLive();
    }

    /** Sets the owner of a weight whose memory the quantizers will allocate. */
    void awaitQuantizers(Parameters newOwner) {
        owner = newOwner;
        tied = false;
        weight = null;
        gradient = null;
        quantized = null;
        written = NEVER;
    }

    void place(Parameters newOwner, Tensor newWeight, @Nullable Tensor newGradient) {
        owner = newOwner;
        tied = false;
        weight = newWeight;
        quantized = null;
        gradient = newGradient;
        weightIssue = Inside.issue(newWeight);
        gradientIssue = newGradient == null ? 0 : Inside.issue(newGradient);
        written = NEVER;
    }

    void keep(WeightStorage newStorage) {
        storage = newStorage;
    }

    private void ensureNotQuantizedOnly(String lacks, String mend) {
        if (isQuantizedOnly()) {
            throw new IllegalStateException("parameter " + name
                    + " is kept only in eight bits (QUANTIZED_ONLY), so it has " + lacks + "; " + mend);
        }
    }

    private void ensureOwn(Tensor present, int issue) {
        if (Inside.isTakenBack(present, issue)) {
            throw new IllegalStateException(
                    "parameter " + name + " has lost its memory: the scope of its Parameters was"
                            + " restarted; close them and call Parameters.allocate again");
        }
    }

    @Override
    public String toString() {
        return name + shape;
    }
}
