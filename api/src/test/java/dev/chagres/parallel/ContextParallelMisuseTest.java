package dev.chagres.parallel;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.PackedChunk;
import dev.chagres.attention.Sequences;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.sharding.DataParallel;
import dev.chagres.te.QkvFormat;
import java.util.function.Function;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What context-parallel ranks would compute otherwise than one rank is refused; and who has which tokens. */
@Tag("L0")
@Tag("L2")
class ContextParallelMisuseTest {
    private static final AttentionConfig HEADS = AttentionConfig.of(24, 8, AttentionMask.none());

    /** What a rank does that is refused. */
    private interface Refused {
        void run(Rank rank, ContextParallel tokens);
    }

    private static void assertRefused(Class<? extends RuntimeException> type, String text, int ranks, Refused refused) {
        DevicesNeeded.assume(ranks);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(ranks).each(rank -> refused.run(rank, ContextParallel.of(rank.communicator()))));
        assertInstanceOf(type, failure.getCause());
        assertEquals(text, failure.getCause().getMessage());
    }

    private static void assertRefused(String text, int ranks, TransformerLayerConfig config) {
        assertRefused(
                IllegalArgumentException.class,
                text,
                ranks,
                (rank, tokens) -> new TransformerLayer(config, new ModelPlan(tokens).group("layer")));
    }

    private static TransformerLayerConfig layer(AttentionConfig attention) {
        return TransformerLayerConfig.encoder(32, attention);
    }

    @Test
    void headsThatRanksDoNotDivide() {
        String rest = " context-parallel ranks, each of which attends with some of them over all tokens, got ";
        String mend = "; withRing() and withAllGather() need no multiple";
        assertRefused("heads: layer.attention expected a multiple of the 5" + rest + 24 + mend, 5, layer(HEADS));
        assertRefused(
                "keyHeads: layer.attention expected a multiple of the 2" + rest + 1 + mend,
                2,
                layer(HEADS.withKeyHeads(1)));
    }

    /** The error names the heads that were asked for, not those that a tensor-parallel rank has of them. */
    @Test
    void headsThatRanksOfBothKindsDoNotDivide() {
        DevicesNeeded.assume(4);
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.CONTEXT, 2).with(MeshDimension.TENSOR, 2);
        String rest = ": layer.attention expected a multiple of 4, for 2 tensor-parallel ranks divide them and 2"
                + " context-parallel ranks divide what each of these has, got 6; withRing() and withAllGather() need"
                + " only a multiple of 2";
        AttentionConfig six = AttentionConfig.of(6, 8, AttentionMask.none());
        Ranks.local(4).each(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                TensorParallel tensor = TensorParallel.of(mesh.along(MeshDimension.TENSOR));
                ContextParallel context = ContextParallel.of(mesh.along(MeshDimension.CONTEXT));
                assertThrown(
                        IllegalArgumentException.class,
                        "heads" + rest,
                        () -> new TransformerLayer(layer(six), new ModelPlan(tensor, context).group("layer")));
                assertThrown(
                        IllegalArgumentException.class,
                        "keyHeads" + rest,
                        () -> new TransformerLayer(
                                layer(AttentionConfig.of(12, 8, AttentionMask.none())
                                        .withKeyHeads(6)),
                                new ModelPlan(tensor, context).group("layer")));
                new TransformerLayer(layer(six), new ModelPlan(tensor, context.withRing()).group("layer"));
            }
        });
    }

    @Test
    void columnsOfWhichRanksCannotDrawApart() {
        assertRefused(
                "hidden: layer expected a multiple of 4 columns for 2 context-parallel ranks, got 30",
                2,
                TransformerLayerConfig.encoder(30, HEADS));
    }

    @Test
    void tokensThatAreNotThisRanks() {
        assertRefused(
                IllegalArgumentException.class,
                "x: expected 3 tokens, the part of context-parallel rank 0 of 2 of the 7 that the sequences have, got 7;"
                        + " ContextParallel.own cuts it out",
                2,
                (rank, tokens) -> {
                    ModelPlan plan = new ModelPlan(tokens);
                    TransformerLayer layer = new TransformerLayer(layer(HEADS), plan.group("layer"));
                    try (Scope scope = rank.device().openScope();
                            Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1);
                            Pass pass = Pass.training(rank.device())) {
                        if (rank.index() != 0) {
                            return;
                        }
                        pass.begin(Sequences.packed(scope, 3, 4));
                        Tensor x = scope.tensor(DType.FLOAT32, 7, 32);
                        layer.forward(x, pass);
                    }
                });
    }

    @Test
    void stretchesCoverAllTokens() {
        DevicesNeeded.assume(3);
        Ranks.local(3).each(rank -> {
            ContextParallel tokens = ContextParallel.of(rank.communicator());
            assertEquals("context-parallel rank " + rank.index() + " of 3", tokens.toString());
            for (long count = 3; count < 200; count++) {
                assertEquals(0, tokens.begin(count, 0));
                assertEquals(count, tokens.begin(count, 3));
                for (int i = 0; i < 3; i++) {
                    long length = tokens.begin(count, i + 1) - tokens.begin(count, i);
                    assertEquals(count / 3.0, length, count < 48 ? 1 : 32, count + " tokens");
                    if (count < 48) {
                        assertEquals(i * count / 3, tokens.begin(count, i));
                    } else {
                        assertEquals(0, tokens.begin(count, i) % 16, count + " tokens");
                    }
                }
            }
            assertThrown(
                    IllegalArgumentException.class,
                    "tokens: expected at least 3, one of each of the 3 context-parallel ranks, got 2; make the micro-batch"
                            + " larger",
                    () -> tokens.count(2));
            assertThrown(IllegalArgumentException.class, "rank: expected 0 to 3, got 4", () -> tokens.begin(48, 4));
            assertThrown(IllegalArgumentException.class, "rank: expected 0 to 2, got 3", () -> tokens.count(48, 3));
            assertThrown(
                    IllegalArgumentException.class,
                    "heads: expected no negative number, got -3",
                    () -> tokens.share("heads", "", -3));
            try (Scope scope = rank.device().openScope()) {
                Tensor ids = scope.tensor(DType.INT32, 7);
                ids.set(scope.stream(), 0, 1, 2, 3, 4, 5, 6);
                assertEquals(
                        tokens.begin(7, tokens.rank()), tokens.own(ids, scope).toInts(scope.stream())[0]);
                assertEquals(tokens.count(7), tokens.own(ids, scope).count());
                assertThrown(
                        IllegalArgumentException.class,
                        "whole: expected [T] or [T, columns], got INT32[7, 1, 1]",
                        () -> tokens.own(scope.tensor(DType.INT32, 7, 1, 1), scope));
                assertSame(ids, ContextParallel.none().own(ids, scope));
            }
            long most = Long.MAX_VALUE;
            assertEquals(most / 3 / 16 * 16, tokens.begin(most, 1));
            assertEquals((most / 3 * 2 + most % 3 * 2 / 3) / 16 * 16, tokens.begin(most, 2));
            assertEquals(most, tokens.count(most, 0) + tokens.count(most, 1) + tokens.count(most, 2));
        });
        ContextParallel none = ContextParallel.none();
        assertEquals(0, none.count(0));
        assertThrown(
                IllegalArgumentException.class, "tokens: expected no negative number, got -1", () -> none.count(-1));
        assertThrown(
                IllegalStateException.class,
                "group: expected tokens split among ranks, got all on each; check isSplit() first",
                () -> ContextParallel.none().group());
        assertEquals("all tokens", ContextParallel.none().toString());
    }

    @Test
    void whatIsNotThere() {
        ContextParallel none = ContextParallel.none();
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor ids = scope.tensor(DType.INT32, 7);
            assertThrown(NullPointerException.class, "whole: expected a value, got null", () -> none.own(null, scope));
            assertThrown(NullPointerException.class, "scope: expected a value, got null", () -> none.own(ids, null));
        }
    }

    /** What goes by the place of a query in its sequence, of which a rank has a part. */
    @Test
    void whatGatheredKeysDoNotTell() {
        SharedInput biases = new SharedInput("biases");
        assertRefused(
                IllegalArgumentException.class,
                "biases: expected none where each rank attends only with its own queries, got " + biases
                        + "; ContextParallel.of, which exchanges heads, allows it",
                2,
                (rank, tokens) -> new TransformerLayer(
                                layer(HEADS), new ModelPlan(tokens.withAllGather()).group("layer"))
                        .attention()
                        .bias(biases));
        assertRefused(
                IllegalArgumentException.class,
                "plan: layer.cross_attention expected context parallelism that exchanges heads, for only keys of"
                        + " self-attention can be gathered, got context-parallel rank 0 of 2, gathering keys",
                2,
                (rank, tokens) -> {
                    if (rank.index() == 0) {
                        new TransformerLayer(
                                layer(HEADS).withCrossAttention(CrossAttentionConfig.of(32, HEADS)),
                                new SharedInput("memory"),
                                new ModelPlan(tokens.withAllGather()).group("layer"));
                    }
                });
    }

    @Test
    void sequencesThatAreNotThisRanks() {
        String expected = "sequences: expected those of PackedChunk.of for tokens 0 to 4 of 8, the part of"
                + " context-parallel rank 0 of 2, gathering keys, got ";
        assertGathering(
                expected + "THD of 2 sequences, 4 tokens from token 4 on", scope -> PackedChunk.of(scope, 4, 8, 3, 5));
        assertGathering(
                expected + "THD of 2 sequences, 5 tokens from token 0 on", scope -> PackedChunk.of(scope, 0, 5, 3, 5));
        assertGathering(
                "scoreMask: expected none with gathered keys, got BYTE[1, 1, 8, 8]; ContextParallel.of, which"
                        + " exchanges heads, allows it",
                scope -> PackedChunk.of(scope, 0, 4, 3, 5).withScoreMask(scope.tensor(DType.BYTE, 1, 1, 8, 8)));
    }

    private static void assertGathering(String text, Function<Scope, Sequences> sequences) {
        assertRefused(IllegalArgumentException.class, text, 2, (rank, tokens) -> {
            ModelPlan plan = new ModelPlan(tokens.withAllGather());
            TransformerLayer layer = new TransformerLayer(layer(HEADS), plan.group("layer"));
            if (rank.index() != 0) {
                return;
            }
            try (Scope scope = rank.device().openScope();
                    Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1);
                    Pass pass = Pass.training(rank.device())) {
                pass.begin(sequences.apply(scope));
                layer.forward(scope.tensor(DType.FLOAT32, 4, 32), pass);
            }
        });
    }

    @Test
    void sequencesWhoseKeysAreNotGathered() {
        String end = "; ContextParallel.of, which exchanges heads, allows every layout";
        String expected =
                "sequences: expected packed ones without gaps where ranks gather keys for their own queries, got ";
        assertGathering(
                expected + "BSHD of 2 sequences, 8 tokens" + end,
                scope -> Sequences.dense(scope, QkvFormat.BSHD, 2, 4));
        assertGathering(
                expected + "THD of 2 sequences, 8 tokens with gaps" + end,
                scope -> Sequences.packed(scope, new int[] {3, 2}, new int[] {4, 4}));
    }

    /** Of 12 tokens two context-parallel ranks have 6 each, which 4 sequence-parallel ones do not divide. */
    @Test
    void tokensThatSequenceParallelRanksDoNotDivide() {
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.CONTEXT, 2).with(MeshDimension.TENSOR, 4);
        String end = " on this context-parallel rank, of THD of 1 sequences, 12 tokens; pad them";
        for (boolean passesOn : new boolean[] {false, true}) {
            assertRefused(
                    IllegalArgumentException.class,
                    "sequences: expected a number of tokens that the 4 sequence-parallel ranks divide, got 6" + end,
                    8,
                    (rank, world) -> {
                        try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                            ContextParallel tokens = ContextParallel.of(mesh.along(MeshDimension.CONTEXT));
                            ModelPlan plan = new ModelPlan(
                                    TensorParallel.of(mesh.along(MeshDimension.TENSOR))
                                            .withSequenceParallel(),
                                    passesOn ? tokens.withRing() : tokens);
                            TransformerLayer layer = new TransformerLayer(layer(HEADS), plan.group("layer"));
                            if (rank.index() != 0) {
                                return;
                            }
                            try (Scope scope = rank.device().openScope();
                                    Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1);
                                    Pass pass = Pass.training(rank.device())) {
                                pass.begin(Sequences.packed(scope, 12));
                                layer.forward(scope.tensor(DType.FLOAT32, 1, 32), pass);
                            }
                        }
                    });
        }
    }

    @Test
    void stagesOfAPipelineShareTheSameTokens() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            ModelPlan plan = new ModelPlan(ContextParallel.of(rank.communicator()));
            assertSame(
                    plan.contextParallel(),
                    plan.part(parameter -> true, parameter -> 0).contextParallel());
        });
    }

    @Test
    void gradientsOfThisRanksTokensAlone() {
        assertRefused(
                IllegalStateException.class,
                "gradients: expected their sum over 2 context-parallel ranks, got that of only this rank's tokens;"
                        + " make a Strategy over these ranks, such as DataParallel.of(parameters, communicator), and"
                        + " call"
                        + " its sumGradients",
                2,
                (rank, tokens) -> {
                    ModelPlan plan = new ModelPlan(tokens);
                    plan.declare("w", Initializer.zeros(), 3);
                    try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1)) {
                        new GradientNorm(parameters, 1).compute();
                    }
                });
    }

    @Test
    void sumsThatLeaveRanksOut() {
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.REPLICATE, 2).with(MeshDimension.CONTEXT, 2);
        assertRefused(
                IllegalStateException.class,
                "communicator: expected equally many of each of the 2 context-parallel ranks, over which gradients"
                        + " are summed, got rank 0 of 2, rank 0 of 2; give the communicator of all ranks, such as"
                        + " mesh.world()",
                4,
                (rank, all) -> {
                    try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                        if (mesh.coordinate(MeshDimension.CONTEXT) != 0) {
                            return;
                        }
                        ModelPlan plan = new ModelPlan(ContextParallel.of(mesh.along(MeshDimension.CONTEXT)));
                        plan.declare("w", Initializer.zeros(), 3);
                        try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1)) {
                            DataParallel.of(parameters, mesh.along(MeshDimension.REPLICATE))
                                    .close();
                        }
                    }
                });
    }
}
