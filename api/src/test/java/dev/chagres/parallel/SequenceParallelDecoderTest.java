package dev.chagres.parallel;

import static dev.chagres.parallel.ContextParallelTest.close;
import static dev.chagres.parallel.ContextParallelTest.joined;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.Inside;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.SharedInput;
import dev.chagres.sharding.DataParallel;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * An encoder and a decoder that reads its output, of sequence-parallel ranks: each has a part of the tokens of both, and computes what
 * one rank computes, dropout of every kind included.
 */
@Tag("L0")
@Tag("L2")
class SequenceParallelDecoderTest {
    private static final int MEMORY = 32;
    private static final int HIDDEN = 64;
    private static final int[] SOURCES = {20, 1, 27};
    private static final int[] TARGETS = {9, 16, 7};
    private static final Dropout DROPOUT = Dropout.of(0.1f);

    private record Result(
            float[] y,
            float[] dtarget,
            float[] dsource,
            List<float[]> gradients,
            List<@Nullable ParameterSplit> splits) {}

    private static TransformerLayerConfig dropping(TransformerLayerConfig config) {
        return config.withInitializer(Initializer.normal(0.2f))
                .withHiddenDropout(DROPOUT)
                .withDropPath(Dropout.of(0.2f));
    }

    /** @param alike ranks that compute terms of the same gradients */
    private static Result run(
            Device device, ModelPlan plan, UnaryOperator<Layer> wrapper, @Nullable Communicator alike) {
        AttentionConfig heads = AttentionConfig.of(16, 8, AttentionMask.none()).withDropout(DROPOUT);
        SharedInput memory = new SharedInput("memory");
        Layer encoder = wrapper.apply(
                new TransformerLayer(dropping(TransformerLayerConfig.encoder(MEMORY, heads)), plan.group("encoder")));
        Layer decoder = wrapper.apply(new TransformerLayer(
                dropping(TransformerLayerConfig.encoder(HIDDEN, heads.withMask(AttentionMask.causal()))
                        .withCrossAttention(CrossAttentionConfig.of(HIDDEN, heads.withKeyHeads(8))
                                .withMemoryColumns(MEMORY))),
                memory,
                plan.group("decoder")));
        try (Scope scope = device.openScope();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 3);
                Pass pass = Pass.training(device)) {
            Sequences sources = Sequences.packed(scope, SOURCES);
            pass.begin(sources);
            pass.seed(4, 5, 6);
            Tensor source = own(plan, drawn(scope, SOURCES, MEMORY, 1), scope);
            Tensor target = own(plan, drawn(scope, TARGETS, HIDDEN, 2), scope);
            Inside.requireGradient(source, true);
            Inside.requireGradient(target, true);
            memory.forward(encoder.forward(source, pass), pass);
            pass.sequences(Sequences.packed(scope, TARGETS).withKeys(sources));
            float[] y = decoder.forward(target, pass).toFloats(pass.stream());
            Tensor dtarget = decoder.backward(own(plan, drawn(scope, TARGETS, HIDDEN, 3), scope), pass);
            float[] ofTarget = dtarget.toFloats(pass.stream());
            Tensor dsource = encoder.backward(memory.backward(pass), pass);
            try (DataParallel strategy = alike == null ? null : DataParallel.of(parameters, alike)) {
                if (strategy != null) {
                    strategy.sumGradients();
                }
                parameters.completeGradients();
            }
            List<float[]> gradients = new ArrayList<>();
            List<@Nullable ParameterSplit> splits = new ArrayList<>();
            parameters.all().forEach(parameter -> {
                gradients.add(parameter.gradient().toFloats(pass.stream()));
                splits.add(parameter.split());
            });
            return new Result(y, ofTarget, dsource.toFloats(pass.stream()), gradients, splits);
        }
    }

    private static Tensor drawn(Scope scope, int[] lengths, int columns, int seed) {
        SplittableRandom random = new SplittableRandom(seed);
        int tokens = IntStream.of(lengths).sum();
        float[] values = new float[tokens * columns];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        Tensor tensor = scope.tensor(DType.FLOAT32, tokens, columns);
        tensor.set(scope.stream(), values);
        return tensor;
    }

    /** Returns what a rank has between branches. */
    private static Tensor own(ModelPlan plan, Tensor whole, Scope scope) {
        Tensor stretch = plan.contextParallel().own(whole, scope);
        TensorParallel ranks = plan.tensorParallel();
        if (!ranks.isSequenceParallel()) {
            return stretch;
        }
        long rows = stretch.size(0) / ranks.size();
        return scope.view(stretch, ranks.rank() * rows * stretch.size(1), rows, stretch.size(1));
    }

    @ParameterizedTest
    @CsvSource({"1, 2, false", "1, 4, true", "2, 2, false", "2, 4, true"})
    void ranksComputeWhatOneRankComputes(int context, int tensor, boolean recomputed) {
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.CONTEXT, context).with(MeshDimension.TENSOR, tensor);
        DevicesNeeded.assume(shape.ranks());
        UnaryOperator<Layer> wrapper = recomputed ? Recomputed::new : UnaryOperator.identity();
        Result whole;
        try (Device device = Device.open()) {
            whole = run(device, new ModelPlan(), UnaryOperator.identity(), null);
        }
        List<Result> parts = Ranks.local(shape.ranks()).run(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                ModelPlan plan = new ModelPlan(
                        TensorParallel.of(mesh.along(MeshDimension.TENSOR)).withSequenceParallel(),
                        ContextParallel.of(mesh.along(MeshDimension.CONTEXT)));
                return run(rank.device(), plan, wrapper, context == 1 ? null : mesh.along(MeshDimension.CONTEXT));
            }
        });
        // The gradient of the keys' bias is 0: what rounding leaves of it is relative to what cancels.
        double tolerance = Provider.current() == Provider.CUDA ? 4e-3 : 1e-4;
        close(whole.y, joined(parts.stream().map(Result::y).toList()), tolerance, "y");
        close(whole.dtarget, joined(parts.stream().map(Result::dtarget).toList()), tolerance, "dtarget");
        close(whole.dsource, joined(parts.stream().map(Result::dsource).toList()), tolerance, "dsource");
        for (Result part : parts) {
            for (int i = 0; i < whole.gradients.size(); i++) {
                ParameterSplit split = part.splits.get(i);
                float[] all = whole.gradients.get(i);
                float[] expected = split == null ? all : new float[all.length / split.ranks()];
                for (int e = 0; split != null && e < expected.length; e++) {
                    expected[e] = all[Math.toIntExact(split.element(e))];
                }
                close(expected, part.gradients.get(i), tolerance, "gradient " + i);
            }
        }
    }
}
