package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.List;
import java.util.function.Supplier;
import java.util.function.ToLongFunction;

/**
 * What optimizers have in common whose state lies in the order of the gradients: checks, the count of steps, masters, and the form in files.
 *
 * <p>Threading: the device's thread.
 */
abstract class FlatOptimizer implements Optimizer {
    final OptimizerState state;
    private final Parameters parameters;
    /** Name and numbers of the method. */
    private String text;
    /** FLOAT32 [1]: the gradient scale of a step without one. */
    final Tensor one;
    /** INT32 [1] of 0: a step without a norm is never skipped. */
    final Tensor neverSkip;

    /** As the other constructor, with vectors and masters in the device's memory. */
    FlatOptimizer(
            Parameters parameters,
            OptimizerConfig config,
            List<ParameterGroup> groups,
            float weightDecay,
            DType dtype,
            List<String> endings,
            OptimizerState.Masters masters) {
        this(parameters, config, groups, weightDecay, dtype, endings, masters, _ -> 0);
    }

    /**
     * Checks what an optimizer is made with, and allocates its state.
     *
     * @param config a record, whose components are told and compared by ranks
     * @param weightDecay of matrices
     * @param dtype of the vectors
     * @param endings of the names of the vectors
     * @param hostBytes of vectors and masters of these ranges in the host's memory; 0 for the device's
     */
    FlatOptimizer(
            Parameters parameters,
            OptimizerConfig config,
            List<ParameterGroup> groups,
            float weightDecay,
            DType dtype,
            List<String> endings,
            OptimizerState.Masters masters,
            ToLongFunction<List<UpdateRange>> hostBytes) {
        List<ParameterGroup> own = check(parameters, config, groups);
        StepUpdate.ensureAligned(parameters, dtype);
        List<UpdateRange> ranges = UpdateRange.of(parameters, weightDecay, own);
        String name = getClass().getSimpleName();
        String numbers = config.toString();
        this.parameters = parameters;
        text = name + "(" + numbers.substring(numbers.indexOf('[') + 1, numbers.length() - 1) + ")";
        state = new OptimizerState(
                name, parameters, dtype, endings, masters, ranges, own, hostBytes.applyAsLong(ranges));
        Stream stream = parameters.scope().stream();
        try {
            one = state.scope.tensor(DType.FLOAT32, 1);
            one.set(stream, 1f);
            neverSkip = state.scope.tensor(DType.INT32, 1);
            neverSkip.zero(stream);
        } catch (RuntimeException | Error failure) {
            state.close();
            throw failure;
        }
    }

    /**
     * Checks that gradients of products have no type of their own.
     *
     * @throws IllegalArgumentException when they have
     */
    static void ensureFloat32Gradients(Parameters parameters) {
        for (Tensor vector : Checks.given("parameters", parameters).gradientVectors()) {
            if (vector.dtype() != DType.FLOAT32) {
                throw new IllegalArgumentException("parameters: expected FLOAT32 gradients, got those of products in "
                        + vector.dtype() + "; call plan.productGradients(DType.FLOAT32), or take AdamW, SGD, Lion or"
                        + " ScheduleFreeAdamW");
            }
        }
    }

    /** Checks what an optimizer is made with, and returns its groups. */
    private static List<ParameterGroup> check(Parameters parameters, Object config, List<ParameterGroup> groups) {
        Checks.given("parameters", parameters, "config", config);
        List<ParameterGroup> own = Checks.givenAll("groups", groups);
        for (Parameter parameter : parameters.all()) {
            if (parameter.isQuantizedOnly() && !parameter.isFrozen()) {
                throw new IllegalArgumentException(
                        "parameters: expected weights that can be updated, or are frozen, got "
                                + parameter.name() + " that is kept QUANTIZED_ONLY and is not frozen; freeze it before"
                                + " Parameters.allocate, or allocate with WeightStorage.QUANTIZED");
            }
        }
        Checks.on(parameters.scope().stream(), "parameters", parameters.gradients());
        return own;
    }

    /** Makes what enqueues a step, and lets ranks compare the settings; the state is closed when that fails. */
    final <T> T begun(Supplier<T> update) {
        try {
            T made = update.get();
            parameters.access().optimizedBy(this, state.settings(text, true), state.settings(text, false));
            return made;
        } catch (RuntimeException | Error failure) {
            state.close();
            throw failure;
        }
    }

    /** Keeps an average of the weights from now on, which ranks compare. */
    final void keepAverage(float decay) {
        try {
            follow(state.keepAverage(decay));
            text += ", average of weights with decay " + decay;
            parameters.access().optimizedBy(this, state.settings(text, true), state.settings(text, false));
        } catch (RuntimeException | Error failure) {
            close();
            throw failure;
        }
    }

    /** Hears of an average that is made of each step's weights. */
    void follow(WeightAverage average) {}

    /** Enqueues the update of weights, masters and vectors, unless {@code skip} is not 0. */
    abstract void update(Tensor gradientScale, Tensor skip);

    /** Returns name and numbers of the method, and a line for each group with its own rate and decay. */
    @Override
    public final String toString() {
        StringBuilder lines = new StringBuilder(text);
        for (ParameterGroup group : state.numbers.groups) {
            lines.append("\n  ").append(group);
        }
        return lines.toString();
    }

    @Override
    public final long step() {
        state.ensureOpen();
        return state.numbers.taken();
    }

    @Override
    public void beginEvaluation() {
        state.ensureOpen();
        WeightAverage average = state.average();
        if (average != null) {
            average.beginEvaluation();
        }
    }

    @Override
    public void endEvaluation() {
        state.ensureOpen();
        WeightAverage average = state.average();
        if (average != null) {
            average.endEvaluation();
        }
    }

    @Override
    public final long byteSize() {
        return state.scope.reservedBytes();
    }

    @Override
    public final long hostBytes() {
        return state.hostBytes();
    }

    @Override
    public final void step(float rate, GradientNorm norm) {
        if (Checks.given("norm", norm).parameters() != parameters) {
            throw new IllegalArgumentException("norm: expected that of this optimizer's parameters, got another");
        }
        check(rate, norm.scale());
        norm.use();
        parameters.completeGradients();
        LossScaler scaler = norm.scaler();
        if (scaler == null) {
            state.numbers.next(rate);
        } else {
            state.numbers.next(rate, scaler, norm.skip());
        }
        begin(norm.scale(), norm.skip());
        if (scaler == null) {
            parameters.nextStep();
        } else {
            parameters.nextStep(norm.skip());
        }
    }

    @Override
    public final void step(float rate) {
        step(rate, one);
    }

    @Override
    public final void step(float rate, Tensor gradientScale) {
        check(rate, gradientScale);
        parameters.completeGradients(); // refuses a step before its sums, when nothing is counted yet
        state.numbers.next(rate);
        begin(gradientScale, neverSkip);
        parameters.nextStep();
    }

    @Override
    public final void rate(float rate) {
        state.ensureOpen();
        state.numbers.checkRate(rate);
        state.numbers.choose(rate);
    }

    private void check(float rate, Tensor gradientScale) {
        Stream stream = state.scope.stream();
        Inside.state(stream).ensureCurrent();
        Inside.state(stream).ensureNotGrouping("step");
        state.ensureTraining();
        Checks.on(stream, "parameters", parameters.gradients());
        Checks.vector(stream, "gradientScale", gradientScale, DType.FLOAT32, 1);
        state.numbers.checkRate(rate);
        state.numbers.ensureChosen(rate);
    }

    private void begin(Tensor gradientScale, Tensor skip) {
        Inside.state(state.scope.stream()).awaitReads();
        state.masters.prepare();
        WeightAverage average = state.average();
        if (average != null) {
            average.prepare();
        }
        parameters.updating();
        update(gradientScale, skip);
        if (average != null) {
            average.update(skip);
        }
    }

    /**
     * {@inheritDoc}
     *
     * <p>They are, for each trained parameter, the vectors of the method and, where its weight has 16 bits, {@code name.master}, FLOAT32, or
     * {@code name.remainder}, BYTE [elements, 2]; and the number of steps.
     */
    @Override
    public final State state() {
        return state.whole();
    }

    @Override
    public final State stepState() {
        return state.step();
    }

    @Override
    public final Parameters parameters() {
        return parameters;
    }

    @Override
    public final List<StateVector> vectors() {
        return state.vectors();
    }

    @Override
    public void close() {
        state.close();
        parameters.access().forgetOptimizer(this);
    }
}
