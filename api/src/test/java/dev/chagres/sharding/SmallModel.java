package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.UnaryOperator;

/** A small encoder with embedding, head and loss, whose layers can be wrapped, frozen and dropped out. */
public final class SmallModel implements AutoCloseable {
    public static final int LAYERS = 4;
    public static final int HIDDEN = 32;
    public static final int VOCABULARY = 24;
    public static final TransformerLayerConfig LAYER =
            TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()));
    public static final int[] LENGTHS = {7, 1, 12, 5};

    /** Everything that a step produces. */
    public record Step(float loss, float[] logits, List<float[]> gradients) {}

    private static final Initializer WEIGHTS = Initializer.normal(0.2f);

    public final Device device;
    public final DType dtype;
    public final ModelPlan plan;
    public final Embedding embedding;
    public final Layer layers;
    public final TokenGather gather;
    public final Layer head;
    public final CrossEntropy crossEntropy;
    public final Parameters parameters;
    public final Scope inputs;

    public SmallModel(
            Device device, DType dtype, float dropout, UnaryOperator<Layer> wrapper, Consumer<ModelPlan> frozen) {
        this(device, dtype, dropout, wrapper, frozen, plan -> Parameters.allocate(device, plan, dtype, 7));
    }

    public SmallModel(
            Device device,
            DType dtype,
            float dropout,
            UnaryOperator<Layer> wrapper,
            Consumer<ModelPlan> frozen,
            Function<ModelPlan, Parameters> memory) {
        this(device, dtype, dropout, wrapper, frozen, memory, new ModelPlan(), LAYER);
    }

    public SmallModel(
            Device device,
            DType dtype,
            float dropout,
            UnaryOperator<Layer> wrapper,
            Consumer<ModelPlan> frozen,
            Function<ModelPlan, Parameters> memory,
            ModelPlan plan,
            TransformerLayerConfig base) {
        this.device = device;
        this.dtype = dtype;
        this.plan = plan;
        embedding = Embedding.vocabularyParallel(VOCABULARY, HIDDEN, WEIGHTS, plan.group("embedding"));
        crossEntropy = CrossEntropy.vocabularyParallel(VOCABULARY - 1, VOCABULARY, plan);
        TransformerLayerConfig config = base.withInitializer(WEIGHTS)
                .withHiddenDropout(dropout > 0 ? Dropout.of(dropout) : base.hiddenDropout())
                .withDropPath(dropout > 0 ? Dropout.of(dropout) : base.dropPath());
        gather = new TokenGather(plan);
        List<TransformerLayer> stack = new ArrayList<>();
        for (int i = 0; i < LAYERS; i++) {
            stack.add(new TransformerLayer(config, plan.group("layers." + i)));
        }
        layers = new Sequential("layers", stack.stream().map(wrapper).toArray(Layer[]::new));
        ModelPlan tail = plan.group("head");
        head = wrapper.apply(new Sequential(
                "head",
                new LayerNorm(NormConfig.layerNorm(HIDDEN), tail.child("norm")),
                new Linear(HIDDEN, HIDDEN, WEIGHTS, tail.child("dense")),
                new ActivationLayer("head.gelu", Activation.GELU),
                Linear.tied(embedding.weight(), tail.child("decoder"))));
        frozen.accept(plan);
        parameters = memory.apply(plan);
        inputs = device.openScope();
        RotaryEmbedding rotary = RotaryEmbedding.of(inputs, 64, base.attention().headDim());
        stack.forEach(layer -> layer.rotate(rotary));
    }

    public static SmallModel plain(Device device, DType dtype) {
        return new SmallModel(device, dtype, 0, UnaryOperator.identity(), plan -> {});
    }

    /** Returns ids and labels of a batch over these lengths. */
    public static int[][] batch(long seed, int... lengths) {
        SplittableRandom random = new SplittableRandom(seed);
        int tokens = 0;
        for (int length : lengths) {
            tokens += length;
        }
        int[] ids = new int[tokens];
        int[] labels = new int[tokens];
        for (int i = 0; i < tokens; i++) {
            ids[i] = random.nextInt(VOCABULARY);
            labels[i] = random.nextInt(3) == 0 ? random.nextInt(VOCABULARY - 1) : -100;
        }
        return new int[][] {ids, labels};
    }

    public Tensor ints(Scope scope, int... values) {
        Tensor tensor = scope.tensor(DType.INT32, values.length);
        tensor.set(device.stream(), values);
        return tensor;
    }

    /** Returns this rank's part of what belongs to all tokens. */
    public Tensor own(Pass pass, int... values) {
        return plan.contextParallel().own(ints(pass.scope(), values), pass.scope());
    }

    public Tensor logits(Pass pass, int[] ids, int... lengths) {
        pass.begin();
        pass.sequences(Sequences.packed(pass.scope(), lengths));
        return logits(pass, ints(pass.scope(), ids));
    }

    public Tensor logits(Pass pass, Tensor ids) {
        Tensor embedded = embedding.forward(ids, pass);
        return head.forward(gather.forward(layers.forward(embedded, pass), pass), pass);
    }

    public void backward(Pass pass) {
        Tensor dy = gather.backward(head.backward(crossEntropy.backward(pass), pass), pass);
        embedding.backward(layers.backward(dy, pass), pass);
    }

    /** One forward and backward pass over the usual batch, and what came out. */
    public Step step(Pass pass) {
        int[][] batch = batch(3, LENGTHS);
        Tensor scores = logits(pass, batch[0], LENGTHS);
        float[] before = scores.toFloats(device.stream());
        Tensor loss = crossEntropy.forward(scores, ints(pass.scope(), batch[1]), pass);
        float value = loss.toFloats(device.stream())[0];
        backward(pass);
        return new Step(value, before, gradients());
    }

    public List<float[]> gradients() {
        parameters.completeGradients();
        List<float[]> all = new ArrayList<>();
        for (Parameter parameter : parameters.all()) {
            all.add(parameter.isFrozen() ? new float[0] : parameter.gradient().toFloats(device.stream()));
        }
        return all;
    }

    @Override
    public void close() {
        inputs.close();
        parameters.close();
    }
}
