package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.PackedChunk;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.Safetensors;
import dev.chagres.launch.Rank;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.Adafactor;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.Lion;
import dev.chagres.optim.Muon;
import dev.chagres.optim.OffloadedConfig;
import dev.chagres.optim.Optimizer;
import dev.chagres.optim.ParameterGroup;
import dev.chagres.optim.SGD;
import dev.chagres.optim.ScheduleFreeAdamW;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/**
 * What training a small model gave, on one rank of several or on one that accumulates as many micro-batches.
 *
 * @param dtype of the weights
 * @param losses of each step; a rank's part
 * @param norms of each step's gradients
 * @param first weights before training
 * @param state after training: weights, and moments where the strategy gathers them
 */
public record RankedRun(
        DType dtype, float[] losses, float[] norms, Map<String, Saved> first, Map<String, Saved> state) {
    public static final int STEPS = 20;
    private static final float RATE = 1e-3f;
    /** Adam makes whole steps of gradients that are nearly 0, whose sign TF32 decides. */
    private static final int MOST_MISSED_STEPS = 4;

    /** A tensor of the state. */
    public record Saved(Shape shape, float[] values) {}

    /** What is different from a plain encoder, whose head is tied to its embedding. */
    public enum Variant {
        PLAIN,
        DROPOUT,
        RECOMPUTED,
        /** Tokens in multiples of 8, which sequence-parallel ranks divide. */
        EIGHTS,
        RECOMPUTED_EIGHTS,
        FROZEN_BOTTOM,
        DELAYED_SCALING,
        CURRENT_SCALING,
        BLOCK_SCALING,
        /** Masters in two bytes beside weights of 16 bits. */
        REMAINDERS,
        /** Parameters of the optimizer with rates and decays of their own. */
        GROUPS,
        /** Those groups, momentum instead of Adam's moments. */
        SGD,
        /** Signs of a mean, with remainders beside weights of 16 bits. */
        LION,
        /** Means of squares for rows and columns, and of updates. */
        ADAFACTOR,
        /** Orthogonal steps of matrices, which ranks divide. */
        MUON,
        /** Averages of steps. */
        SCHEDULE_FREE,
        /** Moments of Adam in eight bits. */
        EIGHT_BITS,
        /** Adam beside an average of the weights. */
        AVERAGED,
        /** Masters and moments of Adam in the host's memory. */
        OFFLOADED;

        /** Makes the passes of training compute by this variant's recipe, if it has one; returns its state. */
        private @Nullable Quantizers autocast(Parameters parameters, Pass pass) {
            Recipe recipe = switch (this) {
                case DELAYED_SCALING -> DelayedScaling.standard();
                case CURRENT_SCALING -> Float8CurrentScaling.standard();
                case BLOCK_SCALING -> Float8BlockScaling.standard();
                default -> null;
            };
            if (recipe == null) {
                return null;
            }
            Quantizers quantizers = Quantizers.allocate(parameters, recipe);
            pass.autocast(quantizers);
            return quantizers;
        }

        private AdamW.Config adam() {
            AdamW.Config standard = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);
            return this == REMAINDERS ? standard.withMasters(AdamW.Masters.REMAINDER) : standard;
        }

        private Optimizer optimizer(Parameters parameters) {
            List<ParameterGroup> groups = List.of(
                    ParameterGroup.of("embedding", p -> p.name().startsWith("embedding"))
                            .withRateFactor(0.25f),
                    ParameterGroup.of(
                                    "biases",
                                    p -> p.shape().rank() == 1 && p.name().endsWith("bias"))
                            .withRateFactor(2)
                            .withWeightDecay(0.5f),
                    ParameterGroup.of("bottom", p -> p.name().startsWith("layers.0"))
                            .withWeightDecay(0.3f));
            return switch (this) {
                case SGD -> new SGD(parameters, new SGD.Config(0.9f, 0.01f), groups);
                case LION -> new Lion(parameters, Lion.Config.standard().withMasters(AdamW.Masters.REMAINDER), groups);
                case ADAFACTOR ->
                    new Adafactor(parameters, Adafactor.Config.standard().withBeta1(0.9f), groups);
                case MUON -> new Muon(parameters, Muon.Config.standard(), groups);
                case SCHEDULE_FREE -> new ScheduleFreeAdamW(parameters, ScheduleFreeAdamW.Config.standard(), groups);
                case EIGHT_BITS -> new AdamW(parameters, adam().withMomentDType(DType.BYTE));
                case AVERAGED -> adam().withAverage(0.9f).make(parameters, groups);
                case OFFLOADED -> new OffloadedConfig(adam(), 1024).make(parameters, List.of());
                default -> new AdamW(parameters, adam(), this == GROUPS ? groups : List.of());
            };
        }

        private ModelPlan aligned(ModelPlan plan) {
            plan.alignParameters(this == EIGHT_BITS ? 256 : 16);
            return plan;
        }

        float dropout() {
            return this == DROPOUT ? 0.1f : 0;
        }

        UnaryOperator<Layer> wrapper() {
            return this == RECOMPUTED || this == RECOMPUTED_EIGHTS ? Recomputed::new : UnaryOperator.identity();
        }

        private int multiple() {
            return this == EIGHTS || this == RECOMPUTED_EIGHTS ? 8 : 1;
        }

        Consumer<ModelPlan> frozen() {
            return this == FROZEN_BOTTOM
                    ? plan -> plan.groups().get("layers.0").forEach(Parameter::freeze)
                    : plan -> {};
        }
    }

    /**
     * The steps that a run makes, from {@code first} to before {@code end}.
     *
     * @param loaded the file of the state that the run begins with; null for first weights
     * @param saved where the last state goes, also as a checkpoint if {@link #steps} is a folder; null for nowhere
     * @param saver is told of each step instead of that; null for nothing
     */
    public record Span(
            int first,
            int end,
            @Nullable Path loaded,
            @Nullable Path saved,
            @Nullable Saver saver) {
        static final Span ALL = new Span(0, STEPS, null, null);

        /** Saves the last state. */
        public Span(int first, int end, @Nullable Path loaded, @Nullable Path saved) {
            this(first, end, loaded, saved, null);
        }

        private void made(int step, RunState state) {
            if (saver != null) {
                saver.made(step, state);
            }
        }

        /** Returns the folder of the checkpoints of a run that also saves a file. */
        public static Path steps(Path saved) {
            return saved.resolveSibling(saved.getFileName() + ".steps");
        }

        private void save(RunState state) {
            Path file = saved;
            if (saver != null) {
                saver.end();
                return;
            }
            if (file == null) {
                return;
            }
            state.save(file, Map.of());
            if (Files.isDirectory(steps(file))) {
                state.save(CheckpointFolder.of(steps(file)), end, Map.of());
            }
        }
    }

    /** Saves what it likes of a rank's run. */
    public interface Saver {
        /** Hears of a step whose work is enqueued, with the state after it. */
        void made(int step, RunState state);

        /** Hears that no step follows. */
        void end();
    }

    /** Makes a strategy for the parameters of a plan. */
    public interface Sharing {
        Strategy share(ModelPlan plan, DType dtype, Rank rank);

        /** Returns the state of the whole model. */
        default RunState state(Strategy strategy, Optimizer optimizer, State others) {
            return RunState.of(strategy).optimizer(optimizer).with(others);
        }
    }

    /** Sequences of a part of a step: unequal, and none for some. */
    private static int[] lengths(int part) {
        return switch (part % 4) {
            case 0 -> new int[] {7, 1, 12, 5};
            case 1 -> new int[] {3};
            case 2 -> new int[] {16, 2};
            default -> new int[] {};
        };
    }

    private static int[][] batch(int step, int part) {
        return SmallModel.batch(100L * step + part, lengths(part));
    }

    private static int labelled(int step, int part) {
        return labelled(batch(step, part)[1], 0, batch(step, part)[1].length);
    }

    private static int labelled(int[] labels, int begin, int end) {
        return (int)
                Arrays.stream(labels, begin, end).filter(label -> label >= 0).count();
    }

    /** The sequences that are computed of a part. */
    private record Given(int[] lengths, int[] ids, int[] labels) {
        static Given of(int step, int part, Variant variant) {
            int[] lengths = RankedRun.lengths(part);
            int[][] batch = batch(step, part);
            if (lengths.length == 0) { // takes part in one that has sequences, whose labels do not count
                lengths = RankedRun.lengths(part - 1);
                batch = batch(step, part - 1);
                Arrays.fill(batch[1], -100);
            }
            int tokens = batch[0].length;
            int filled = -tokens & (variant.multiple() - 1);
            if (filled == 0) {
                return new Given(lengths, batch[0], batch[1]);
            }
            lengths = Arrays.copyOf(lengths, lengths.length + 1); // with a sequence without labels
            lengths[lengths.length - 1] = filled;
            int[] labels = Arrays.copyOf(batch[1], tokens + filled);
            Arrays.fill(labels, tokens, tokens + filled, -100);
            return new Given(lengths, Arrays.copyOf(batch[0], tokens + filled), labels);
        }

        /** Where keys are gathered, of every other step those of this rank's part, which layers else cut out themselves. */
        Sequences sequences(int step, ContextParallel ranks, Scope scope) {
            int tokens = labels.length;
            return ranks.gathersKeys() && step % 2 == 0
                    ? PackedChunk.of(
                            scope, ranks.begin(tokens, ranks.rank()), ranks.begin(tokens, ranks.rank() + 1), lengths)
                    : Sequences.packed(scope, lengths);
        }

        /** Returns the labelled tokens among those of one of several context-parallel ranks. */
        int labelled(ContextParallel ranks) {
            int count = 0;
            for (int i = 0; i < ranks.chunks(); i++) {
                int chunk = ranks.chunk(ranks.rank(), i);
                int begin = (int) ranks.chunkBegin(labels.length, chunk);
                count += RankedRun.labelled(labels, begin, (int) ranks.chunkBegin(labels.length, chunk + 1));
            }
            return count;
        }
    }

    /** Forward and backward of a part; returns its part of the loss. */
    private static float part(SmallModel model, Pass pass, int step, int part, Tensor divisor, Variant variant) {
        Given given = Given.of(step, part, variant);
        pass.seed(5, step, part);
        pass.sequences(given.sequences(step, model.plan.contextParallel(), pass.scope()));
        Tensor logits = model.logits(pass, model.own(pass, given.ids));
        Tensor loss = model.crossEntropy.forward(logits, model.own(pass, given.labels), divisor, pass);
        float value = loss.toFloats(model.device.stream())[0];
        model.backward(pass);
        return value;
    }

    private static Map<String, Saved> saved(State state, Stream stream) {
        Map<String, Saved> all = new LinkedHashMap<>();
        state.tensors().forEach((name, tensor) -> all.put(name, saved(tensor, stream)));
        return all;
    }

    private static Saved saved(Tensor tensor, Stream stream) {
        if (tensor.dtype() != DType.BYTE) {
            return new Saved(tensor.shape(), tensor.toFloats(stream));
        }
        byte[] bytes = tensor.toBytes(stream);
        float[] values = new float[bytes.length];
        for (int i = 0; i < bytes.length; i++) {
            values[i] = bytes[i];
        }
        return new Saved(tensor.shape(), values);
    }

    /** Trains on one rank that accumulates {@code parts} micro-batches in each step. */
    public static RankedRun ofOne(int parts, DType dtype, Variant variant) {
        return ofOne(parts, dtype, variant, SmallModel.LAYER, Span.ALL);
    }

    /** Trains some of the steps. */
    public static RankedRun ofOne(int parts, DType dtype, Variant variant, Span span) {
        return ofOne(parts, dtype, variant, SmallModel.LAYER, span);
    }

    /** Trains of other layers. */
    public static RankedRun ofOne(int parts, DType dtype, Variant variant, TransformerLayerConfig layer) {
        return ofOne(parts, dtype, variant, layer, Span.ALL);
    }

    private static RankedRun ofOne(int parts, DType dtype, Variant variant, TransformerLayerConfig layer, Span span) {
        try (Device device = Device.open();
                SmallModel model = new SmallModel(
                        device,
                        dtype,
                        variant.dropout(),
                        variant.wrapper(),
                        variant.frozen(),
                        plan -> Parameters.allocate(device, variant.aligned(plan), dtype, 7),
                        new ModelPlan(),
                        layer);
                Optimizer optimizer = variant.optimizer(model.parameters);
                Pass pass = Pass.training(device);
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            Quantizers quantizers = variant.autocast(model.parameters, pass);
            State whole = State.of(model.parameters.state(), optimizer.state(), stateOf(quantizers));
            if (span.loaded != null) {
                Safetensors.load(span.loaded, whole, stream);
            }
            RunState alone = RunState.of(model.parameters).optimizer(optimizer).with(stateOf(quantizers));
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            Tensor divisor = scope.tensor(DType.INT32, 1);
            Map<String, Saved> first = saved(model.parameters.state(), stream);
            float[] losses = new float[STEPS];
            float[] norms = new float[STEPS];
            for (int step = span.first; step < span.end; step++) {
                int count = 0;
                for (int part = 0; part < parts; part++) {
                    count += labelled(step, part);
                }
                divisor.set(stream, count);
                for (int part = 0; part < parts; part++) {
                    if (lengths(part).length > 0) {
                        pass.begin();
                        losses[step] += part(model, pass, step, part, divisor, variant);
                    }
                }
                norm.compute();
                norms[step] = norm.norm().toFloats(stream)[0];
                optimizer.step(RATE, norm);
                span.made(step, alone);
            }
            span.save(alone);
            State state = State.of(model.parameters.state(), optimizer.state());
            return new RankedRun(dtype, losses, norms, first, saved(state, stream));
        }
    }

    private static State stateOf(@Nullable Quantizers quantizers) {
        return quantizers == null ? State.of() : quantizers.state();
    }

    /** Trains as one rank of several. */
    public static RankedRun of(Rank rank, Sharing sharing, int microBatches, DType dtype, Variant variant) {
        return of(rank, sharing, microBatches, dtype, variant, new ModelPlan(), SmallModel.LAYER, Span.ALL);
    }

    /** Trains some of the steps. */
    public static RankedRun of(Rank rank, Sharing sharing, int microBatches, DType dtype, Variant variant, Span span) {
        return of(rank, sharing, microBatches, dtype, variant, new ModelPlan(), SmallModel.LAYER, span);
    }

    /** Trains as one of several data-parallel ranks, whose layers may be split, of other layers. */
    public static RankedRun of(
            Rank rank,
            Sharing sharing,
            int microBatches,
            DType dtype,
            Variant variant,
            ModelPlan empty,
            TransformerLayerConfig layer) {
        return of(rank, sharing, microBatches, dtype, variant, empty, layer, Span.ALL);
    }

    /** Trains some of the steps of such layers. */
    public static RankedRun of(
            Rank rank,
            Sharing sharing,
            int microBatches,
            DType dtype,
            Variant variant,
            ModelPlan empty,
            TransformerLayerConfig layer,
            Span span) {
        Device device = rank.device();
        Stream stream = device.stream();
        Strategy[] made = new Strategy[1];
        try (SmallModel model = new SmallModel(
                        device,
                        dtype,
                        variant.dropout(),
                        variant.wrapper(),
                        variant.frozen(),
                        plan -> {
                            made[0] = sharing.share(variant.aligned(plan), dtype, rank);
                            return made[0].parameters();
                        },
                        empty,
                        layer);
                Strategy strategy = made[0];
                Optimizer optimizer = variant.optimizer(model.parameters);
                Pass pass = Pass.training(device);
                Scope scope = device.openScope()) {
            Map<String, Saved> first = state(strategy, optimizer, stream);
            first.keySet()
                    .removeIf(
                            name -> name.matches(".*\\.(exp_avg.*|momentum_buffer|master|remainder|x|z|averages|ema)"));
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            Tensor labelled = scope.tensor(DType.INT32, 1);
            float[] losses = new float[STEPS];
            float[] norms = new float[STEPS];
            strategy.follow(pass);
            Quantizers quantizers = variant.autocast(model.parameters, pass);
            if (quantizers != null) {
                strategy.reduceAmax(quantizers);
            }
            if (span.loaded != null) {
                sharing.state(strategy, optimizer, stateOf(quantizers)).load(span.loaded);
            }
            for (int step = span.first; step < span.end; step++) {
                labelled.set(stream, labelled(step, rank, microBatches, variant, empty.contextParallel()));
                // @start region="step"
                strategy.sumOverRanks(labelled);
                for (int i = 0; i < microBatches; i++) {
                    int part = i * rank.count() + rank.index();
                    boolean idle = lengths(part).length == 0 && !strategy.needsEqualMicroBatches();
                    if (!idle) {
                        pass.begin();
                        if (i == microBatches - 1) {
                            strategy.lastMicroBatch();
                        }
                        losses[step] += part(model, pass, step, part, labelled, variant);
                    }
                }
                strategy.sumGradients();
                norm.compute();
                // @end
                norms[step] = norm.norm().toFloats(stream)[0];
                optimizer.step(RATE, norm);
                span.made(step, sharing.state(strategy, optimizer, stateOf(quantizers)));
            }
            span.save(sharing.state(strategy, optimizer, stateOf(quantizers)));
            return new RankedRun(dtype, losses, norms, first, state(strategy, optimizer, stream));
        }
    }

    /** Returns those of this rank's tokens of its micro-batches. */
    private static int labelled(int step, Rank rank, int microBatches, Variant variant, ContextParallel tokens) {
        int count = 0;
        for (int i = 0; i < microBatches; i++) {
            int part = i * rank.count() + rank.index();
            count += lengths(part).length == 0
                    ? 0
                    : Given.of(step, part, variant).labelled(tokens);
        }
        return count;
    }

    private static Map<String, Saved> state(Strategy strategy, Optimizer optimizer, Stream stream) {
        if (strategy instanceof FullySharded sharded) {
            Map<String, Saved> all = new LinkedHashMap<>();
            sharded.gatherState(optimizer, (name, tensor) -> all.put(name, saved(tensor, stream)));
            return all;
        }
        Parameters parameters = strategy.parameters();
        Map<String, Saved> all = new LinkedHashMap<>();
        // @start region="gather"
        State state = State.of(parameters.state(), optimizer.state());
        WholeLayers.gather(parameters, state, (name, tensor) -> all.put(name, saved(tensor, stream)));
        // @end
        return all;
    }

    /**
     * Asserts that ranks have made the steps of this run: the first weights have its bits, the later ones differ as sums in another order do. Those
     * differences are small in FLOAT32 on the reference. On a GPU products are rounded to TF32; and one weight of 16 bits that is rounded to its
     * neighbour, which depends on the processor, changes each later step. What differs there at first grows by a few times a step.
     */
    public void assertSame(List<RankedRun> ranks) {
        assertTrue(losses[STEPS - 1] < losses[0]);
        assertSameSteps(ranks);
    }

    /** Asserts the same of a model that need not learn in so few steps, for its labels are drawn: weights have moved. */
    public void assertSameSteps(List<RankedRun> ranks) {
        assertTrue(first.keySet().stream()
                .anyMatch(name -> !Arrays.equals(first.get(name).values, state.get(name).values)));
        boolean isClose = Provider.current() == Provider.REFERENCE && dtype == DType.FLOAT32;
        double lossTolerance = isClose ? 1e-5 : dtype == DType.FLOAT32 ? 1e-3 : 1e-2;
        double normTolerance = isClose ? 1e-4 : dtype == DType.FLOAT32 ? 1e-2 : 5e-2;
        for (int step = 0; step < STEPS; step++) {
            float loss = 0;
            for (RankedRun run : ranks) {
                loss += run.losses[step];
                assertEquals(norms[step], run.norms[step], normTolerance * norms[step], "norm of step " + step);
            }
            assertEquals(losses[step], loss, lossTolerance * losses[step], "loss of step " + step);
        }
        for (RankedRun run : ranks) {
            assertClose(first, run.first, 0);
            assertClose(state, run.state, isClose ? 1e-3 : 2e-2, isClose ? 0 : MOST_MISSED_STEPS * RATE);
            run.state.forEach((name, saved) ->
                    assertArrayEquals(ranks.getFirst().state.get(name).values, saved.values, name + " on all ranks"));
        }
    }

    /** Within {@code tolerance} of the largest element. */
    public static void assertClose(Map<String, Saved> expected, Map<String, Saved> actual, double tolerance) {
        assertClose(expected, actual, tolerance, 0);
    }

    /** The same, or within {@code least}. */
    private static void assertClose(
            Map<String, Saved> expected, Map<String, Saved> actual, double tolerance, double least) {
        assertEquals(expected.keySet(), actual.keySet());
        expected.forEach((name, saved) -> {
            Saved other = actual.get(name);
            assertEquals(saved.shape, other.shape, name);
            double most = 0;
            for (float value : saved.values) {
                most = Math.max(most, Math.abs(value));
            }
            // The gradient of the keys' bias is 0. Adam makes whole steps of what rounding leaves of it, and processors
            // round differently. z are the weights that schedule-free AdamW steps.
            boolean rounding = tolerance > 0 && name.matches(".*qkv\\.linear\\.bias(\\.z|\\.master|\\.ema)?");
            double allowed = rounding ? 2 * STEPS * RATE : Math.max(least, tolerance * most);
            for (int i = 0; i < saved.values.length; i++) {
                if (!(Math.abs(saved.values[i] - other.values[i])
                        <= allowed)) { // A text for each takes longer than the ranks.
                    assertEquals(saved.values[i], other.values[i], allowed, name + "[" + i + "]");
                }
            }
        });
    }
}
