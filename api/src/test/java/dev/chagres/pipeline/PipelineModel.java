package dev.chagres.pipeline;

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
import dev.chagres.layer.TokenScatter;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import dev.chagres.sharding.SmallModel;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** A small encoder whose head is tied to its embedding, whole or what one rank of a pipeline has of it. */
public final class PipelineModel implements PipelineStage, AutoCloseable {
    public static final int HIDDEN = 32;
    private static final Initializer WEIGHTS = Initializer.normal(0.2f);

    /** What differs from a plain encoder. */
    public enum Variant {
        PLAIN,
        DROPOUT,
        RECOMPUTED,
        RECOMPUTED_DROPOUT,
        /** The embedding, and the layers of the first half. */
        FROZEN_BOTTOM,
        /** A layer in the middle, with one a rank a whole stage. */
        FROZEN_MIDDLE,
        /** The table that embedding and head read. */
        FROZEN_TABLE
    }

    /**
     * What one rank has of a model.
     *
     * @param ranks of the pipeline
     * @param rank of the pipeline
     * @param copies among which micro-batches are split: micro-batch i of copy c is i copies + c of the step
     * @param copy this rank's
     * @param multiple of which the tokens of a micro-batch are one, for ranks that split them
     * @param empty the plan of the whole model
     * @param memory takes memory for this rank's part
     */
    public record Place(
            int ranks,
            int stagesPerRank,
            int rank,
            int copies,
            int copy,
            int multiple,
            ModelPlan empty,
            Function<ModelPlan, Parameters> memory) {
        public static Place of(Device device, DType dtype, int ranks, int stagesPerRank, int rank) {
            return new Place(
                    ranks,
                    stagesPerRank,
                    rank,
                    1,
                    0,
                    1,
                    new ModelPlan(),
                    part -> Parameters.allocate(device, part, dtype, 7));
        }
    }

    public final Parameters parameters;
    private final Device device;
    private final Place place;
    private final ModelPlan plan;
    private final PipelinePlan stages;
    private final Embedding embedding;
    private final TokenScatter scatter;
    private final TokenGather gather;
    private final List<Sequential> layers = new ArrayList<>();
    private final Layer head;
    private final CrossEntropy crossEntropy = new CrossEntropy(SmallModel.VOCABULARY - 1);
    private final Scope scope;
    private final float[] losses;
    private long seed;
    private long step;
    private int microBatches;
    private @Nullable Tensor divisor;

    /** Declares the whole model, and takes memory for what {@code rank} of {@code ranks} has of it. */
    public PipelineModel(
            Device device, DType dtype, int layerCount, int ranks, int stagesPerRank, int rank, Variant variant) {
        this(
                device,
                layerCount,
                TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none())),
                Place.of(device, dtype, ranks, stagesPerRank, rank),
                variant);
    }

    /** Declares the whole model, and takes memory for what {@code place} has of it. */
    public PipelineModel(Device device, int layerCount, TransformerLayerConfig base, Place place, Variant variant) {
        this.device = device;
        this.place = place;
        plan = place.empty;
        int ranks = place.ranks;
        int rank = place.rank;
        int stagesPerRank = place.stagesPerRank;
        embedding = new Embedding(SmallModel.VOCABULARY, HIDDEN, WEIGHTS, plan.group("embedding"));
        scatter = new TokenScatter(plan);
        gather = new TokenGather(plan);
        TransformerLayerConfig config = base.withInitializer(WEIGHTS);
        if (variant == Variant.DROPOUT || variant == Variant.RECOMPUTED_DROPOUT) {
            config = config.withHiddenDropout(Dropout.of(0.1f)).withDropPath(Dropout.of(0.1f));
        }
        List<TransformerLayer> stack = new ArrayList<>();
        for (int i = 0; i < layerCount; i++) {
            stack.add(new TransformerLayer(config, plan.group("layers." + i)));
        }
        ModelPlan tail = plan.group("head");
        head = new Sequential(
                "head",
                new LayerNorm(NormConfig.layerNorm(HIDDEN), tail.child("norm")),
                new Linear(HIDDEN, HIDDEN, WEIGHTS, tail.child("dense")),
                new ActivationLayer("head.gelu", Activation.GELU),
                Linear.tied(embedding.weight(), tail.child("decoder")));
        freeze(variant, layerCount);
        // @start region="plan"
        stages = PipelinePlan.of(plan, ranks, stagesPerRank);
        int last = stages.stages() - 1;
        stages.place(0, plan.group("embedding").parameters());
        for (int stage = 0; stage <= last; stage++) {
            for (int i = stages.firstLayer(layerCount, stage); i < stages.firstLayer(layerCount, stage + 1); i++) {
                stages.place(stage, plan.group("layers." + i).parameters());
            }
        }
        stages.place(last, plan.group("head").parameters());
        stages.place(last, List.of(embedding.weight())); // which the head reads, too
        parameters = place.memory.apply(stages.part(rank));
        // @end
        boolean recomputed = variant == Variant.RECOMPUTED || variant == Variant.RECOMPUTED_DROPOUT;
        for (int stage = 0; stage <= last; stage++) {
            layers.add(new Sequential(
                    "layers",
                    stack
                            .subList(stages.firstLayer(layerCount, stage), stages.firstLayer(layerCount, stage + 1))
                            .stream()
                            .map(layer -> recomputed ? new Recomputed(layer) : layer)
                            .toArray(Layer[]::new)));
        }
        scope = device.openScope();
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, 256, base.attention().headDim());
        stack.forEach(layer -> layer.rotate(rotary));
        losses = new float[64];
    }

    private void freeze(Variant variant, int layerCount) {
        switch (variant) {
            case FROZEN_BOTTOM -> {
                embedding.weight().freeze();
                for (int i = 0; i < layerCount / 2; i++) {
                    plan.group("layers." + i).freeze();
                }
            }
            case FROZEN_MIDDLE -> plan.group("layers." + layerCount / 2).freeze();
            case FROZEN_TABLE -> embedding.weight().freeze();
            default -> {}
        }
    }

    public PipelinePlan stages() {
        return stages;
    }

    /** Sequences of a micro-batch of all copies: their number and lengths differ. */
    private int[] lengths(int microBatch) {
        int[] lengths = switch (microBatch % 4) {
            case 0 -> new int[] {7, 1, 12, 5};
            case 1 -> new int[] {3};
            case 2 -> new int[] {16, 2};
            default -> new int[] {9, 9, 9};
        };
        return Arrays.stream(lengths).map(length -> length * place.multiple).toArray();
    }

    private int[][] batch(int microBatch) {
        return SmallModel.batch(100 * step + microBatch, lengths(microBatch));
    }

    /** Returns the number among those of all copies of a micro-batch of this rank's. */
    private int ofAll(int microBatch) {
        return microBatch * place.copies + place.copy;
    }

    /** Begins a step with so many micro-batches of each copy, of which the loss is the mean over all labelled tokens. */
    public void begin(long newSeed, long newStep, int newMicroBatches) {
        seed = newSeed;
        step = newStep;
        microBatches = newMicroBatches;
        Arrays.fill(losses, 0);
        int labelled = 0;
        for (int i = 0; i < microBatches * place.copies; i++) {
            labelled +=
                    (int) Arrays.stream(batch(i)[1]).filter(label -> label >= 0).count();
        }
        Tensor count = divisor == null ? scope.tensor(DType.INT32, 1) : divisor;
        count.set(device.stream(), labelled);
        divisor = count;
    }

    /** Returns the step's loss, of which only the last stage knows. */
    public float loss() {
        float sum = 0;
        for (float loss : losses) {
            sum += loss;
        }
        return sum;
    }

    /** Returns the part of the loss of each micro-batch since {@link #begin}. */
    public float[] losses() {
        return losses.clone();
    }

    /** Returns this rank's part of what belongs to all tokens. */
    private Tensor own(Pass pass, int... values) {
        Tensor tensor = pass.scope().tensor(DType.INT32, values.length);
        tensor.set(device.stream(), values);
        return plan.contextParallel().own(tensor, pass.scope());
    }

    /** Begins a micro-batch of this rank's copy in a pass. */
    private void enter(int microBatch, Pass pass) {
        pass.seed(seed, step, ofAll(microBatch));
        pass.sequences(Sequences.packed(pass.scope(), lengths(ofAll(microBatch))));
    }

    private Tensor embed(int microBatch, Pass pass) {
        return scatter.forward(embedding.forward(own(pass, batch(ofAll(microBatch))[0]), pass), pass);
    }

    private void embeddingGradient(Tensor dx, Pass pass) {
        embedding.backward(scatter.backward(dx, pass), pass);
    }

    /** Forward and backward of the whole model, on one rank. */
    public void compute(int microBatch, Pass pass) {
        pass.begin();
        enter(microBatch, pass);
        Tensor y = layers.getFirst().forward(embed(microBatch, pass), pass);
        embeddingGradient(layers.getFirst().backward(headOf(y, microBatch, pass), pass), pass);
    }

    /** Forward of the whole model, on one rank. */
    public void evaluate(int microBatch, Pass pass) {
        pass.begin();
        enter(microBatch, pass);
        score(layers.getFirst().forward(embed(microBatch, pass), pass), microBatch, pass);
    }

    /** Forward and backward of head and loss. */
    private Tensor headOf(Tensor y, int microBatch, Pass pass) {
        score(y, microBatch, pass);
        return scoreGradient(pass);
    }

    private void score(Tensor y, int microBatch, Pass pass) {
        Tensor labels = own(pass, batch(ofAll(microBatch))[1]);
        Tensor count = Objects.requireNonNull(divisor);
        Tensor logits = head.forward(gather.forward(y, pass), pass);
        losses[microBatch] = crossEntropy.forward(logits, labels, count, pass).toFloats(device.stream())[0];
    }

    private Tensor scoreGradient(Pass pass) {
        return gather.backward(head.backward(crossEntropy.backward(pass), pass), pass);
    }

    // @start region="stage"
    @Override
    public long tokens(int microBatch) {
        long tokens = Arrays.stream(lengths(ofAll(microBatch))).sum();
        TensorParallel tensor = plan.tensorParallel();
        return tensor.isSequenceParallel()
                ? tokens / tensor.size()
                : plan.contextParallel().count(tokens);
    }

    @Override
    public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
        enter(microBatch, pass);
        Tensor in = x != null ? x : embed(microBatch, pass);
        if (y != null) {
            layers.get(stage).forward(in, y, pass);
        } else {
            score(layers.get(stage).forward(in, pass), microBatch, pass);
        }
    }

    @Override
    public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
        Tensor gradient = dy != null ? dy : scoreGradient(pass);
        if (dx != null) {
            layers.get(stage).backward(gradient, dx, pass);
        } else {
            embeddingGradient(layers.get(stage).backward(gradient, pass), pass);
        }
    }
    // @end

    /** Returns the gradients of what is trained here, by name; after the norm. */
    public Map<String, float[]> gradients() {
        Map<String, float[]> all = new LinkedHashMap<>();
        for (Parameter parameter : parameters.all()) {
            if (!parameter.isFrozen()) {
                all.put(parameter.name(), parameter.gradient().toFloats(device.stream()));
            }
        }
        return all;
    }

    @Override
    public void close() {
        scope.close();
        parameters.close();
    }
}
