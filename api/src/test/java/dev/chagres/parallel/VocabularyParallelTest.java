package dev.chagres.parallel;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.ParallelMode;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.WholeLayers;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Ranks with some rows of a vocabulary each compute what one rank computes that has all of it. */
@Tag("L0")
@Tag("L2")
class VocabularyParallelTest {
    private static final int HIDDEN = 24;
    private static final int MICRO_BATCHES = 2;

    /** Which loss is asked for. */
    private enum Kind {
        COUNTED,
        GIVEN,
        BY_TOKEN,
        SCALED
    }

    /** Which tokens a rank has of what embeddings give. */
    private enum Tokens {
        ALL,
        PART
    }

    /** Of {@code vocabulary} columns the first {@code classes} count. */
    private record Case(
            int ranks, DType dtype, int vocabulary, int classes, int tokens, float smoothing, Kind kind, Tokens share) {
        UnaryOperator<TensorParallel> change() {
            return share == Tokens.PART ? TensorParallel::withSequenceParallel : UnaryOperator.identity();
        }

        int[] ids(int microBatch) {
            return new SplittableRandom(17 + microBatch)
                    .ints(tokens, -1, vocabulary + 1)
                    .toArray();
        }

        int[] labels(int microBatch) {
            return new SplittableRandom(71 + microBatch)
                    .ints(tokens, -3, classes + 3)
                    .map(label -> label < 0 ? -100 : label)
                    .toArray();
        }

        float[] tokenGradients() {
            float[] gradients = new float[tokens];
            for (int t = 0; t < tokens; t++) {
                gradients[t] = 1 + t % 3;
            }
            return gradients;
        }
    }

    /** What one rank has computed. */
    private record Result(float[] y, float[] logits, float[] loss, float[] dlogits, float[] table, float[] bias) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        int[][] sizes = {{33, 33}, {64, 33}, {40, 37}, {5, 3}};
        SplittableRandom random = new SplittableRandom(9);
        for (int ranks : new int[] {1, 2, 3, 4, 8}) {
            for (int[] size : sizes) {
                for (Kind kind : Kind.values()) {
                    DType dtype = random.nextInt(3) == 0 ? DType.BFLOAT16 : DType.FLOAT32;
                    Tokens share = random.nextBoolean() ? Tokens.PART : Tokens.ALL;
                    int tokens = random.nextInt(8) == 0 ? 0 : ranks * (1 + random.nextInt(30));
                    float smoothing = random.nextBoolean() ? 0.1f : 0;
                    cases.add(new Case(ranks, dtype, size[0], size[1], tokens, smoothing, kind, share));
                }
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void ranksTogetherHaveWhatOneHas(Case one) {
        DevicesNeeded.assume(one.ranks);
        Result whole = Ranks.local(1)
                .run(rank -> run(rank.device(), TensorParallel.none(), one))
                .getFirst();
        List<Result> parts = Ranks.local(one.ranks)
                .run(rank -> run(rank.device(), one.change().apply(TensorParallel.of(rank.communicator())), one));
        double tolerance = one.dtype == DType.BFLOAT16 ? 2e-2 : Provider.current() == Provider.CUDA ? 4e-3 : 2e-5;
        int each = Math.ceilDiv(one.vocabulary, one.ranks);
        for (int r = 0; r < one.ranks; r++) {
            Result part = parts.get(r);
            int begin = Math.min(one.vocabulary, r * each);
            int end = Math.min(one.vocabulary, begin + each);
            assertArrayEquals(whole.y, part.y, "rows of the table are copied");
            close(whole.loss, part.loss, tolerance, "loss");
            assertArrayEquals(parts.getFirst().loss, part.loss, "the loss is the same on all ranks");
            close(columns(whole.logits, one.vocabulary, begin, end), part.logits, tolerance, "logits");
            close(columns(whole.dlogits, one.vocabulary, begin, end), part.dlogits, tolerance, "dlogits");
            close(Arrays.copyOfRange(whole.table, begin * HIDDEN, end * HIDDEN), part.table, tolerance, "table");
            close(Arrays.copyOfRange(whole.bias, begin, end), part.bias, tolerance, "bias");
        }
        closeToDoublePrecision(one, parts, each);
    }

    private static Result run(Device device, TensorParallel ranks, Case one) {
        ModelPlan plan = new ModelPlan(ranks);
        Stream stream = device.stream();
        // @start region="vocabularyParallel"
        Embedding embedding =
                Embedding.vocabularyParallel(one.vocabulary, HIDDEN, Initializer.normal(1), plan.group("embedding"));
        TokenGather gather = new TokenGather(plan);
        Linear decoder = Linear.tied(embedding.weight(), plan.group("decoder"));
        CrossEntropy crossEntropy = CrossEntropy.vocabularyParallel(one.classes, one.vocabulary, plan);
        // @end
        crossEntropy = one.smoothing == 0 ? crossEntropy : crossEntropy.withLabelSmoothing(one.smoothing);
        try (Parameters parameters = Parameters.allocate(device, plan, one.dtype, 5);
                Pass pass = Pass.training(device)) {
            float[] y = {};
            float[] logits = {};
            float[] loss = {};
            float[] dlogits = {};
            for (int i = 0; i < MICRO_BATCHES; i++) {
                pass.begin();
                Tensor ids = pass.scope().tensor(DType.INT32, one.tokens);
                ids.set(stream, one.ids(i));
                Tensor labels = pass.scope().tensor(DType.INT32, one.tokens);
                labels.set(stream, one.labels(i));
                Tensor number = pass.scope().tensor(DType.INT32, 1);
                number.set(stream, 3 * one.tokens + 1);
                Tensor x = gather.forward(embedding.forward(ids, pass), pass);
                Tensor z = decoder.forward(x, pass);
                y = x.toFloats(stream);
                logits = z.toFloats(stream);
                Tensor l = switch (one.kind) {
                    case COUNTED, SCALED -> crossEntropy.forward(z, labels, pass);
                    case GIVEN -> crossEntropy.forward(z, labels, number, pass);
                    case BY_TOKEN -> crossEntropy.tokenLosses(z, labels, pass);
                };
                loss = l.toFloats(stream);
                Tensor dz = backward(crossEntropy, pass, one);
                dlogits = dz.toFloats(stream);
                embedding.backward(gather.backward(decoder.backward(dz, pass), pass), pass);
            }
            parameters.completeGradients();
            return new Result(
                    y,
                    logits,
                    loss,
                    dlogits,
                    embedding.weight().gradient().toFloats(stream),
                    decoder.bias().gradient().toFloats(stream));
        }
    }

    private static Tensor backward(CrossEntropy crossEntropy, Pass pass, Case one) {
        Stream stream = pass.stream();
        return switch (one.kind) {
            case COUNTED -> crossEntropy.backward(pass);
            case GIVEN -> crossEntropy.backward(0.5f, pass);
            case BY_TOKEN -> {
                Tensor gradients = pass.scope().tensor(DType.FLOAT32, one.tokens);
                gradients.set(stream, one.tokenGradients());
                yield crossEntropy.backward(gradients, pass);
            }
            case SCALED -> {
                Tensor scale = pass.scope().tensor(DType.FLOAT32, 1);
                scale.set(stream, 4f);
                yield crossEntropy.backward(0.5f, scale, pass);
            }
        };
    }

    /** Losses and their gradients of the last micro-batch, from the logits of all ranks. */
    private static void closeToDoublePrecision(Case one, List<Result> parts, int each) {
        int[] labels = one.labels(MICRO_BATCHES - 1);
        long counted = Arrays.stream(labels)
                .filter(label -> label >= 0 && label < one.classes)
                .count();
        double divisor =
                one.kind == Kind.BY_TOKEN ? 1 : one.kind == Kind.GIVEN ? 3.0 * one.tokens + 1 : Math.max(1, counted);
        double[] losses = new double[one.tokens];
        double tolerance = one.dtype == DType.BFLOAT16 ? 1e-2 : 1e-5;
        for (int t = 0; t < one.tokens; t++) {
            double[] z = new double[one.classes];
            for (int c = 0; c < one.classes; c++) {
                z[c] = at(parts, c, t, each, one, Result::logits);
            }
            double largest = Arrays.stream(z).max().orElseThrow();
            double lse = largest
                    + Math.log(Arrays.stream(z).map(v -> Math.exp(v - largest)).sum());
            int label = labels[t];
            boolean taken = label >= 0 && label < one.classes;
            double smoothing = one.smoothing;
            double mean = Arrays.stream(z).sum() / one.classes;
            losses[t] = taken ? lse - (1 - smoothing) * z[label] - smoothing * mean : 0;
            double factor = switch (one.kind) {
                case COUNTED -> 1;
                case GIVEN -> 0.5;
                case BY_TOKEN -> one.tokenGradients()[t];
                case SCALED -> 2;
            };
            for (int c = 0; c < one.vocabulary; c++) {
                double expected = taken && c < one.classes
                        ? factor
                                / divisor
                                * (Math.exp(z[c] - lse) - (c == label ? 1 - smoothing : 0) - smoothing / one.classes)
                        : 0;
                assertEquals(expected, at(parts, c, t, each, one, Result::dlogits), tolerance * factor / divisor, "dz");
            }
        }
        float[] actual = parts.getFirst().loss;
        if (one.kind == Kind.BY_TOKEN) {
            for (int t = 0; t < one.tokens; t++) {
                assertEquals(losses[t], actual[t], 1e-5 * (1 + Math.abs(losses[t])), "loss of token " + t);
            }
        } else {
            double sum = Arrays.stream(losses).sum();
            assertEquals(counted == 0 ? 0 : sum / divisor, actual[0], 1e-5 * (1 + sum / divisor), "loss");
        }
    }

    /** Picks a matrix out of a result. */
    private interface Matrix {
        float[] of(Result result);
    }

    private static double at(List<Result> parts, int column, int token, int each, Case one, Matrix matrix) {
        int rank = column / each;
        int width = Math.min(one.vocabulary, (rank + 1) * each) - rank * each;
        return matrix.of(parts.get(rank))[token * width + column - rank * each];
    }

    private static float[] columns(float[] whole, int width, int begin, int end) {
        int rows = whole.length / width;
        float[] part = new float[rows * (end - begin)];
        for (int row = 0; row < rows; row++) {
            System.arraycopy(whole, row * width + begin, part, row * (end - begin), end - begin);
        }
        return part;
    }

    private static void close(float[] expected, float[] actual, double tolerance, String what) {
        assertEquals(expected.length, actual.length, what);
        double largest = 1;
        for (float value : expected) {
            largest = Math.max(largest, Math.abs(value));
        }
        for (int i = 0; i < expected.length; i++) {
            assertEquals(expected[i], actual[i], tolerance * largest, what + "[" + i + "]");
        }
    }

    /** A whole table in a plan whose layers are split: what ranks had before. */
    @Test
    void wholeTablesStayWhole() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            ModelPlan plan = new ModelPlan(TensorParallel.of(rank.communicator()));
            Embedding embedding = new Embedding(33, HIDDEN, Initializer.normal(1), plan.group("embedding"));
            Linear decoder = Linear.tied(embedding.weight(), Bias.ABSENT, plan.group("decoder"));
            assertEquals(Shape.of(33, HIDDEN), embedding.weight().shape());
            assertEquals(ParallelMode.NONE, decoder.parallelMode());
        });
    }

    /** Parts of 33 rows among 4 and 8 ranks, of which the last one has none, gathered to the table of one rank. */
    @Test
    void unevenTablesAreGathered() {
        for (int ranks : new int[] {4, 8}) {
            DevicesNeeded.assume(ranks);
            float[] whole = Ranks.local(1)
                    .run(rank -> gathered(rank.device(), TensorParallel.none()))
                    .getFirst()
                    .get("embedding.weight");
            Ranks.local(ranks).each(rank -> {
                Map<String, float[]> parts = gathered(rank.device(), TensorParallel.of(rank.communicator()));
                assertArrayEquals(whole, parts.get("embedding.weight"));
                assertEquals(33, parts.get("decoder.bias").length);
            });
        }
    }

    private static Map<String, float[]> gathered(Device device, TensorParallel ranks) {
        ModelPlan plan = new ModelPlan(ranks);
        Embedding embedding = Embedding.vocabularyParallel(33, HIDDEN, Initializer.normal(1), plan.group("embedding"));
        Linear.tied(embedding.weight(), plan.group("decoder"));
        Map<String, float[]> tensors = new HashMap<>();
        try (Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 5)) {
            WholeLayers.gather(
                    parameters,
                    parameters.state(),
                    (name, tensor) -> tensors.put(name, tensor.toFloats(device.stream())));
        }
        return tensors;
    }

    @Test
    void unevenSplitsHaveEachElementOnce() {
        Shape whole = Shape.of(2, 12, 3);
        for (int ranks : new int[] {1, 2, 3, 5, 8}) {
            int[] owners = new int[72];
            for (int rank = 0; rank < ranks; rank++) {
                ParameterSplit split = new ParameterSplit(whole, 1, List.of(7L, 5L), rank, ranks);
                long count = split.shape().count();
                LongStream.range(0, count).forEach(i -> owners[Math.toIntExact(split.element(i))]++);
                for (long i = 0; i < count; i++) {
                    assertEquals(i, split.local(split.element(i)));
                }
                assertEquals(
                        count,
                        LongStream.range(0, 72).filter(e -> split.local(e) >= 0).count());
                assertEquals(ranks == 1, split.isEven());
            }
            assertArrayEquals(IntStream.range(0, 72).map(i -> 1).toArray(), owners);
        }
        ParameterSplit none = new ParameterSplit(Shape.of(33, 2), 0, List.of(33L), 7, 8);
        assertEquals(Shape.of(0, 2), none.shape());
        assertThrown(
                IndexOutOfBoundsException.class,
                "element: expected one of " + none.shape() + ", got 0",
                () -> none.element(0));
        assertThrown(
                IndexOutOfBoundsException.class,
                "element: expected one of " + none.whole() + ", got 66",
                () -> none.local(66));
        assertEquals(2, none.run());
    }

    @Test
    void whatDoesNotFitIsRefused() {
        DevicesNeeded.assume(2);
        assertThrown(
                IllegalArgumentException.class,
                "columns: expected at least the 33 classes, got 32",
                () -> CrossEntropy.vocabularyParallel(33, 32, new ModelPlan()));
        assertThrown(
                IllegalArgumentException.class,
                "classes: expected at least 1, got 0",
                () -> CrossEntropy.vocabularyParallel(0, 32, new ModelPlan()));
        assertThrown(
                IllegalArgumentException.class,
                "count: expected at least 0, got -1",
                () -> TensorParallel.none().begin(-1, 0));
        assertThrown(
                IllegalArgumentException.class,
                "rank: expected 0 to 1, got 2",
                () -> TensorParallel.none().begin(4, 2));
        assertRefused(
                "vocabulary: expected at least 1, got 0",
                plan -> Embedding.vocabularyParallel(0, 4, Initializer.zeros(), plan.group("embedding")));
        assertRefused(
                "logits: expected [T, 4 columns] of floats, 4 of 7 classes on tensor-parallel rank 0 of 2, got ",
                plan -> {
                    Device device = plan.tensorParallel().group().device();
                    try (Pass pass = Pass.training(device)) {
                        pass.begin();
                        Tensor logits = pass.scope().tensor(DType.FLOAT32, 5, 8);
                        Tensor labels = pass.scope().tensor(DType.INT32, 5);
                        CrossEntropy.vocabularyParallel(7, 8, plan).forward(logits, labels, pass);
                    }
                });
        assertRefused(
                "sequences: expected a number of tokens that the 2 sequence-parallel ranks divide, got ", plan -> {
                    ModelPlan parts = new ModelPlan(plan.tensorParallel().withSequenceParallel());
                    TransformerLayer layer = new TransformerLayer(
                            TransformerLayerConfig.encoder(16, AttentionConfig.of(2, 8, AttentionMask.none())),
                            parts.group("layer"));
                    Device device = plan.tensorParallel().group().device();
                    try (Parameters parameters = Parameters.allocate(device, parts, DType.FLOAT32, 1);
                            Pass pass = Pass.training(device)) {
                        pass.begin();
                        pass.sequences(Sequences.packed(pass.scope(), 7));
                        layer.forward(pass.scope().tensor(DType.FLOAT32, 3, 16), pass);
                    }
                });
        assertRefused("ids: expected a number of tokens that the 2 sequence-parallel ranks divide, got ", plan -> {
            ModelPlan parts = new ModelPlan(plan.tensorParallel().withSequenceParallel());
            Embedding embedding = Embedding.vocabularyParallel(8, 4, Initializer.zeros(), parts);
            Device device = plan.tensorParallel().group().device();
            try (Parameters parameters = Parameters.allocate(device, parts, DType.FLOAT32, 1);
                    Pass pass = Pass.training(device)) {
                pass.begin();
                embedding.forward(pass.scope().tensor(DType.INT32, 3), pass);
            }
        });
        assertRefused(
                "logits: expected 10 tokens, those of the labels, got FLOAT32[5, 4], this rank's part of them; put a"
                        + " TokenGather before the layer that computes them",
                plan -> {
                    Device device = plan.tensorParallel().group().device();
                    try (Pass pass = Pass.training(device)) {
                        pass.begin();
                        Tensor logits = pass.scope().tensor(DType.FLOAT32, 5, 4);
                        Tensor labels = pass.scope().tensor(DType.INT32, 10);
                        CrossEntropy.vocabularyParallel(7, 8, plan).forward(logits, labels, pass);
                    }
                });
        assertRefused("weight: expected a whole one in the plan of whole layers, got ", plan -> {
            Embedding embedding = Embedding.vocabularyParallel(8, 4, Initializer.zeros(), plan);
            Linear.tied(embedding.weight(), new ModelPlan());
        });
        assertRefused(
                "weight: expected a whole one, or some rows of it for tensor-parallel rank 0 of 2, got ", plan -> {
                    Linear rows =
                            new Linear(8, 4, Bias.ABSENT, ParallelMode.ROW, Initializer.zeros(), plan.child("rows"));
                    Linear.tied(rows.weight(), plan.child("tied"));
                });
    }

    /** What several ranks refuse, one refuses, too: columns behind the classes that are not there. */
    @Test
    void oneRankKnowsTheColumns() {
        try (Device device = Device.open(0);
                Pass pass = Pass.training(device)) {
            pass.begin();
            Tensor logits = pass.scope().tensor(DType.FLOAT32, 5, 10);
            Tensor labels = pass.scope().tensor(DType.INT32, 5);
            CrossEntropy loss =
                    CrossEntropy.vocabularyParallel(10, 12, new ModelPlan()).withLabelSmoothing(0.1f);
            assertEquals(
                    "logits: expected [T, 12 columns] of floats, got FLOAT32[5, 10]",
                    assertThrows(IllegalArgumentException.class, () -> loss.forward(logits, labels, pass))
                            .getMessage());
        }
    }

    /** Rank 0's error begins with {@code text}. */
    private static void assertRefused(String text, Consumer<ModelPlan> body) {
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    if (rank.index() == 0) {
                        body.accept(new ModelPlan(TensorParallel.of(rank.communicator())));
                    }
                }));
        String actual = String.valueOf(failure.getCause().getMessage());
        assertEquals(text, actual.substring(0, Math.min(text.length(), actual.length())));
    }
}
