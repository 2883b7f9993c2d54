package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.MemoryUse;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.DataPosition;
import dev.chagres.batch.MicroBatch;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.StepReadback;
import dev.chagres.batch.StepResult;
import dev.chagres.batch.TrainedModel;
import dev.chagres.batch.UploadRing;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.RunState;
import dev.chagres.estimate.FlopCount;
import dev.chagres.estimate.KernelTrace;
import dev.chagres.estimate.Lengths;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.launch.Rank;
import dev.chagres.ops.Range;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.LossScaler;
import dev.chagres.optim.Optimizer;
import dev.chagres.optim.OptimizerConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.AmaxRecording;
import dev.chagres.recipe.CastStatistics;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.LongStream;
import org.jspecify.annotations.Nullable;

// Over 400 lines: most methods are a line or two that ask what a step, a graph, an evaluation or a file is made of.

/**
 * A model with its optimizer, as one rank has them: each step is forward, backward, clipping of the gradients' norm, and the optimizer's step. In FP16 the
 * loss is scaled, and a step whose gradients are not finite is skipped.
 *
 * <p>A step that repeats the shapes of earlier ones allocates nothing on the device and makes no Java object.
 *
 * <p>Threading: the device's thread.
 */
final class ModelTraining implements Training {
    /** One step whose result is unread, one under way, one whose batch is being uploaded. */
    private static final int UPLOADS = 3;
    /** Steps whose results may be unread at a time. */
    static final int UNREAD = 2;

    private final Device device;
    private final DType dtype;
    private final BatchShape shape;
    private final Stream stream;
    private final TrainedModel model;
    private final long parameterCount;
    private final double peakFlops;
    private final @Nullable LossScaler lossScaler;
    private final GradientNorm gradientNorm;
    private final Optimizer optimizer;
    private final Pass pass;
    private final StepGradients gradients;
    private final StepReadback readback;
    private UploadRing uploads;
    /** Null where each step is enqueued kernel by kernel. */
    private @Nullable CapturedSteps captured;
    /** Null where products are computed in the model's type. */
    private @Nullable Quantizers quantizers;

    /** Whether scales from earlier steps are still to be found, before the first step. */
    private boolean calibrates;

    private final RankShare ranks;
    private final int evaluatedTogether;
    private final TrainingState state;

    /** Null before the first evaluation. */
    private @Nullable ModelEvaluation evaluation;

    /** Of the steps whose casts were measured and not asked for yet, the oldest first. */
    private final Deque<List<CastStatistics>> measured = new ArrayDeque<>();
    /** Of the batch of the first step, whose operations are counted; null once they are. */
    private @Nullable Lengths counted;

    private double firstFlops = Double.NaN;
    /** Of the step that is captured; launches have rates of their own. */
    private float rate;

    /** What profilers call the part of a step behind its layers. */
    private final Range updating = new Range("gradients' norm and optimizer");
    /** Null where nobody records layers. */
    private KernelTrace.@Nullable Observer recording;

    /** False from where a step changes the state to its end. */
    private boolean whole = true;

    private boolean closed;

    /** Makes the model with its first weights, and all that a step needs, on a rank that is alone. */
    static ModelTraining of(Device device, ModelSetup setup) {
        device.multiprocessorMargin(setup.enqueuing().margin());
        var plan = new ModelPlan();
        setup.layOut(plan);
        TrainedModel model = setup.factory()
                .make(
                        device,
                        plan,
                        declared -> Parameters.allocate(
                                device, declared, setup.precision().dtype(), setup.seed()));
        return new ModelTraining(device, setup, model, plan, RankShare.ofOne());
    }

    /**
     * Makes what one of several ranks has of a model: of each step's micro-batches it computes those whose number modulo the number of
     * data-parallel ranks is its own, and the gradients of all ranks are summed. Each rank is given all batches. A step's result has this
     * rank's part of the loss; the parts add up. Tensor-parallel and context-parallel ranks compute the same micro-batches;
     * the first have the same part. Of a pipeline's ranks the last one has it.
     */
    static ModelTraining of(Rank rank, ModelSetup setup) {
        RankLayout layout = setup.layout();
        return of(rank, setup, made -> RankShare.of(made, layout.dataRank(rank.index()), layout.dataRanks()));
    }

    /** The same of a rank that computes all micro-batches of its batches: each rank is given batches of its own. */
    static ModelTraining ofOwnData(Rank rank, ModelSetup setup) {
        return of(rank, setup, RankShare::ofOwnData);
    }

    private static ModelTraining of(Rank rank, ModelSetup setup, Function<RankModel, RankShare> share) {
        rank.device().multiprocessorMargin(setup.enqueuing().margin());
        RankModel made = RankModel.of(rank, setup);
        return new ModelTraining(rank.device(), setup, made.model(), made.plan(), share.apply(made));
    }

    /**
     * Makes all that a step of {@code model} needs.
     *
     * @param model closed together with this object
     * @param declared all parameters of the model
     * @param ranks closed together with this object
     */
    ModelTraining(Device device, ModelSetup setup, TrainedModel model, ModelPlan declared, RankShare ranks) {
        this.device = device;
        this.ranks = ranks;
        this.model = model;
        shape = setup.shape();
        peakFlops = PeakRate.flopsPerSecond(device.name(), setup.precision());
        evaluatedTogether = ranks.hasOwnData()
                ? 1
                : setup.layout().dataRanks() * setup.layout().pipelineRanks();
        parameterCount = declared.parameters().stream()
                .map(Parameter::wholeShape)
                .mapToLong(Shape::count)
                .sum();
        dtype = model.parameters().dtype();
        stream = device.stream();
        lossScaler = dtype == DType.FLOAT16 ? new LossScaler(model.parameters(), LossScaler.Config.standard()) : null;
        gradientNorm = lossScaler == null
                ? new GradientNorm(model.parameters(), setup.updates().maxNorm())
                : new GradientNorm(lossScaler, setup.updates().maxNorm());
        // BF16 weights are the upper halves of their masters.
        OptimizerConfig updates = setup.updates().optimizer();
        optimizer = (dtype == DType.BFLOAT16 ? updates.withMasters(AdamW.Masters.REMAINDER) : updates)
                .make(model.parameters(), List.of());
        pass = Pass.training(device);
        uploads = UploadRing.ofPart(
                device, shape, UPLOADS, model.parameters().access().contextParallel());
        readback = new StepReadback(stream, shape.microBatches(), UNREAD);
        gradients = new StepGradients(model, pass, ranks, lossScaler);
        passes().forEach(ranks::follow);
        passes().forEach(one -> one.productPlan(setup.enqueuing().productPlan()));
        passes().forEach(one -> one.offload(setup.offload()));
        Recipe recipe = setup.precision().recipe();
        if (recipe != null) {
            autocast(recipe);
        }
        state = new TrainingState(ranks, optimizer, quantizers, lossScaler, setup.files());
        if (setup.enqueuing().castStatistics() != 0) {
            measureCasts(setup.enqueuing().castStatistics());
        }
        if (setup.enqueuing().steps() == ModelSetup.Steps.CAPTURED) {
            captureSteps();
        }
    }

    /** Returns the model. */
    TrainedModel model() {
        return model;
    }

    /** Returns those that carry micro-batches through the layers. */
    List<Pass> passes() {
        PipelineGradients pipeline = ranks.pipeline();
        return pipeline == null ? List.of(pass) : pipeline.passes();
    }

    /** Computes the products of the layers in eight bits from now on; the head's stay in the model's type. */
    private void autocast(Recipe recipe) {
        Quantizers made = Quantizers.allocate(model.parameters(), recipe);
        quantizers = made;
        passes().forEach(one -> one.autocast(made));
        ranks.reduceAmax(made);
        calibrates = recipe instanceof DelayedScaling;
    }

    /** Finds first scales: from the magnitudes of this batch, whose products are computed in the model's type, and from no others. */
    private void calibrate(Batch batch) {
        Quantizers present = Objects.requireNonNull(quantizers);
        calibrates = false;
        passes().forEach(one -> one.calibrate(present));
        uploads.upload(batch);
        gradients.compute(uploads, null);
        present.endCalibration();
        model.parameters().forgetGradients();
        passes().forEach(one -> one.autocast(present));
    }

    /** Measures casts in each step, from the first one on, whose number divides by {@code steps}; such a step waits for the device. */
    void measureCasts(int steps) {
        Quantizers present = quantizers;
        if (present == null) {
            throw new IllegalStateException("measureCasts: expected autocast before, without which nothing is cast");
        }
        present.measureEvery(steps);
    }

    @Override
    public double peakFlops() {
        return peakFlops;
    }

    @Override
    public List<MemoryUse> memoryUse() {
        return List.of(device.peakMemoryUse());
    }

    @Override
    public long hostBytes() {
        return optimizer.hostBytes()
                + passes().stream().mapToLong(Pass::hostBytes).sum();
    }

    @Override
    public List<FlopCount> countedStep(Batch batch, Lengths lengths) {
        firstFlops = 0; // counted here
        try (var count = FlopCount.of(lengths, passes())) {
            upload(batch);
            step(0);
            result(new StepResult());
            return List.of(count);
        }
    }

    @Override
    public void beginRecording(KernelTrace trace) {
        KernelTrace.Observer made = trace.observer();
        passes().forEach(one -> one.observe(made));
        recording = made;
    }

    @Override
    public void endRecording() {
        KernelTrace.Observer present = recording;
        if (present != null) {
            recording = null;
            passes().forEach(one -> one.forget(present));
            present.close();
        }
        device.synchronize();
    }

    @Override
    public List<CastStatistics> castStatistics() {
        List<CastStatistics> oldest = measured.poll();
        return oldest == null ? List.of() : oldest;
    }

    /**
     * Captures a step for each bucket of batches and replays it from now on.
     *
     * @throws IllegalStateException when steps are captured already, or this rank has some of the layers or tokens
     */
    void captureSteps() {
        if (captured != null) {
            throw new IllegalStateException("captureSteps was called already");
        }
        if (ranks.pipeline() != null
                || model.parameters().access().contextParallel().isSplit()) {
            throw new IllegalStateException(
                    "captureSteps: expected a rank that computes whole micro-batches, got one with some of the layers"
                            + " or tokens");
        }
        uploads.close();
        CapturedSteps made = new CapturedSteps(device, shape, UPLOADS, model.padding(), pass, this::enqueue);
        uploads = made.uploads();
        captured = made;
    }

    /** Enqueues a step of a graph: its rate is that of the launch. */
    private void enqueue(List<ModelInput> microBatches) {
        gradients.compute(microBatches, Objects.requireNonNull(captured));
        update(rate);
    }

    private void update(float learningRate) {
        updating.push();
        try {
            gradientNorm.compute();
            keepMeasured();
            optimizer.step(learningRate, gradientNorm);
        } finally {
            Range.pop();
        }
    }

    /** Waits for the statistics of a step whose casts are measured, and keeps them; a captured one has none. */
    private void keepMeasured() {
        Quantizers present = quantizers;
        if (present != null && present.measures(AmaxRecording.ON)) {
            measured.add(present.statistics());
        }
    }

    @Override
    public @Nullable String explainSteps() {
        return captured == null ? null : captured.explain();
    }

    @Override
    public void warmUp(Batch example, BooleanSupplier stopped) {
        MicroBatch first = example.microBatch(0);
        List<PlannedBatch> plans = PlannedBatch.of(device, dtype, shape, first);
        var batch = new Batch(shape);
        for (int i = 0; i < plans.size() && !stopped.getAsBoolean(); i++) {
            plans.get(i).fill(batch, first, model.padding());
            uploads.upload(batch);
            gradients.compute(uploads, null);
            gradientNorm.compute();
            model.parameters().forgetGradients();
        }
        stream.synchronize();
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException when three batches are uploaded of which no step was made
     */
    @Override
    public void upload(Batch batch) {
        if (Double.isNaN(firstFlops)) {
            counted = lengths(batch);
        }
        if (calibrates) {
            calibrate(batch);
        }
        uploads.upload(batch);
    }

    private static Lengths lengths(Batch batch) {
        LongStream.Builder lengths = LongStream.builder();
        for (int i = 0; i < batch.microBatches(); i++) {
            MicroBatch one = batch.microBatch(i);
            for (int sequence = 0; sequence < one.realSequences(); sequence++) {
                lengths.add(one.cuSeqlens()[sequence + 1] - one.cuSeqlens()[sequence]);
            }
        }
        return Lengths.of(lengths.build().toArray()).ofMicroBatches(batch.microBatches());
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException when no batch was uploaded for this step, or two results are unread
     */
    @Override
    public void step(float learningRate) {
        ranks.beginStep();
        Lengths first = counted;
        if (first == null) {
            enqueueStep(learningRate);
        } else {
            counted = null;
            try (FlopCount count = FlopCount.of(first, device)) {
                enqueueStep(learningRate);
                firstFlops = count.flops().all();
            }
        }
        ranks.endStep();
    }

    @Override
    public double countedFlops() {
        return Double.isNaN(firstFlops) ? 0 : firstFlops;
    }

    private void enqueueStep(float learningRate) {
        readback.begin();
        if (ranks.pipeline() == null) {
            pass.seed(0, model.parameters().step(), -1); // so a resumed run drops what the whole one does
        }
        if (captured != null) {
            whole = false;
            rate = learningRate;
            optimizer.rate(learningRate);
            captured.step(ranks.own(), readback);
            readback.finish(gradientNorm.norm());
            whole = true;
            return;
        }
        whole = quantizers == null; // A recipe may change scales in forward.
        gradients.compute(uploads, readback);
        whole = false;
        update(learningRate);
        readback.finish(gradientNorm.norm());
        whole = true;
    }

    @Override
    public boolean isWhole() {
        return whole;
    }

    @Override
    public boolean endsTogether() {
        return !ranks.hasOwnData();
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException when every result was read
     */
    @Override
    public void result(StepResult result) {
        readback.read(result);
    }

    @Override
    public int evaluatedTogether() {
        return evaluatedTogether;
    }

    @Override
    public void beginEvaluation() {
        optimizer.beginEvaluation();
    }

    @Override
    public void endEvaluation() {
        optimizer.endEvaluation();
    }

    @Override
    public ModelEvaluation.Sums evaluate(Batch batch) {
        ModelEvaluation present = evaluation;
        if (present == null) {
            present = new ModelEvaluation(device, model, ranks, quantizers);
            evaluation = present;
        }
        ModelEvaluation.Sums sums = present.compute(batch);
        readback.restartClock();
        return sums;
    }

    /** Returns the bytes that the collectives of one of several ranks moved in the oldest step not asked for, by {@link dev.chagres.nccl.Operation}. */
    long[] readBytes() {
        return ranks.readBytes();
    }

    @Override
    public void save(Path file, DataPosition position, Map<String, String> description) {
        state.save(file, position, description);
    }

    @Override
    public void reserveSaves(CheckpointFolder folder) {
        state.reserveSaves(folder);
    }

    @Override
    public SaveProgress beginSave(
            CheckpointFolder folder, int step, DataPosition position, Map<String, String> description) {
        return state.beginSave(folder, step, position, description);
    }

    @Override
    public boolean isSaving() {
        return state.isSaving();
    }

    @Override
    public SaveProgress advanceSave() {
        return state.advanceSave();
    }

    @Override
    public void ensureSaves() {
        state.ensureSaves();
    }

    @Override
    public void load(Path file) {
        state.load(file);
        calibrates = false;
    }

    @Override
    public void begin(Consumer<RunState> start) {
        state.begin(start);
    }

    @Override
    public RecipeDifferences loadUnderOtherRecipe(Path file) {
        return state.loadUnderOtherRecipe(file);
    }

    @Override
    public boolean skipsSteps() {
        return lossScaler != null;
    }

    @Override
    public EffectiveWindows windows() {
        return ranks.windows();
    }

    @Override
    public long parameterCount() {
        return parameterCount;
    }

    @Override
    public double flops(Batch batch) {
        return model.flops(batch);
    }

    @Override
    public long memoryBytes() {
        return device.peakHeldBytes();
    }

    /** Waits for the steps under way and frees everything. A second call does nothing. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        state.close();
        device.synchronize();
        if (captured == null) {
            uploads.close();
        } else {
            captured.close();
        }
        readback.close();
        updating.close();
        if (evaluation != null) {
            evaluation.close();
        }
        pass.close();
        optimizer.close();
        ranks.close();
        model.close();
    }
}
