package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.PackedChunk;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.pipeline.PipelinePlan;
import dev.chagres.pipeline.PipelineStage;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** A small encoder of 24 heads, or what one rank has of it, and the micro-batches that it is trained with. */
final class StrategyModel implements PipelineStage, AutoCloseable {
    static final int HIDDEN = 24;
    private static final int LONGEST = 24;
    private static final int UNLABELLED = -100;
    private static final long SEED = 5;
    private static final Initializer WEIGHTS = Initializer.normal(0.2f);

    /**
     * What one rank has of the model.
     *
     * @param pipelineRanks among which the layers are split
     * @param pipelineRank this rank's
     * @param dataRanks among which a step's parts are split: micro-batch i of rank r is part {@code i dataRanks + r}
     * @param dataRank this rank's
     * @param plan an empty one
     * @param memory takes memory for what the rank has
     */
    record Place(
            int pipelineRanks,
            int pipelineRank,
            int dataRanks,
            int dataRank,
            ModelPlan plan,
            Function<ModelPlan, Parameters> memory) {
        static Place ofOne(Device device, long seed) {
            return new Place(
                    1, 0, 1, 0, new ModelPlan(), plan -> Parameters.allocate(device, plan, DType.FLOAT32, seed));
        }
    }

    /** Tokens of a part of a step; where the part has none, those of another one, without labels. */
    private record Batch(int[] lengths, int[] ids, int[] labels) {
        static Batch of(StrategyVariant variant, int step, int part) {
            boolean isEmpty = variant.lengths(step, part).length == 0;
            int[] lengths = variant.lengths(step, isEmpty ? part - 1 : part);
            int tokens = Arrays.stream(lengths).sum();
            SplittableRandom random = new SplittableRandom(100L * step + part);
            int[] ids = random.ints(tokens, 0, variant.vocabulary()).toArray();
            int[] labels = random.ints(tokens, 0, variant.vocabulary() - 1).toArray();
            for (int i = 0; i < tokens; i++) {
                labels[i] = isEmpty || random.nextInt(3) != 0 ? UNLABELLED : labels[i];
            }
            return new Batch(lengths, ids, labels);
        }
    }

    final Parameters parameters;
    private final Device device;
    private final StrategyVariant variant;
    private final Place place;
    private final ModelPlan plan;
    private final PipelinePlan stages;
    private final Embedding embedding;
    private final List<Sequential> layers = new ArrayList<>();
    private final LayerNorm norm;
    private final TokenGather gather;
    private final Layer head;
    private final CrossEntropy crossEntropy;
    private final Scope scope;
    private final Tensor labelled;
    private int step;
    private float loss;

    StrategyModel(Device device, StrategyVariant variant, int layerCount, int stagesPerRank, Place place) {
        this.device = device;
        this.variant = variant;
        this.place = place;
        plan = place.plan;
        if (variant == StrategyVariant.ADAPTED) {
            plan.adapt(LoraConfig.of(4, "query", "value", "projection", "fc1", "fc2")
                    .withAlpha(8)
                    .withTrained("head"));
        }
        int vocabulary = variant.vocabulary();
        embedding = Embedding.vocabularyParallel(vocabulary, HIDDEN, WEIGHTS, plan.group("embedding"));
        List<TransformerLayer> stack = new ArrayList<>();
        for (int i = 0; i < layerCount; i++) {
            stack.add(new TransformerLayer(variant.layer().withInitializer(WEIGHTS), plan.group("layers." + i)));
        }
        norm = new LayerNorm(NormConfig.layerNorm(HIDDEN), plan.group("norm").forTokenParts());
        gather = new TokenGather(plan);
        ModelPlan tail = plan.group("head");
        Parameter table = variant.isTied()
                ? embedding.weight()
                : Embedding.vocabularyParallel(vocabulary, HIDDEN, WEIGHTS, tail.child("table"))
                        .weight();
        head = variant.wrap(new Sequential(
                "head",
                new Linear(HIDDEN, HIDDEN, WEIGHTS, tail.child("dense")),
                new ActivationLayer("head.gelu", Activation.GELU),
                Linear.tied(table, tail.child("decoder"))));
        crossEntropy = CrossEntropy.vocabularyParallel(vocabulary - 1, vocabulary, plan);
        if (variant == StrategyVariant.FROZEN) {
            embedding.weight().freeze();
            plan.group("layers.0").freeze();
            plan.groups().get("layers.1").getFirst().freeze();
        }
        stages = stages(layerCount, stagesPerRank);
        parameters = place.memory.apply(place.pipelineRanks == 1 ? plan : stages.part(place.pipelineRank));
        for (int stage = 0; stage < stages.stages(); stage++) {
            layers.add(new Sequential(
                    "layers",
                    stack
                            .subList(stages.firstLayer(layerCount, stage), stages.firstLayer(layerCount, stage + 1))
                            .stream()
                            .map(variant::wrap)
                            .toArray(Layer[]::new)));
        }
        scope = device.openScope();
        RotaryEmbedding rotary =
                RotaryEmbedding.of(scope, LONGEST, variant.layer().attention().headDim());
        stack.forEach(layer -> layer.rotate(rotary));
        labelled = scope.tensor(DType.INT32, 1);
    }

    private PipelinePlan stages(int layerCount, int stagesPerRank) {
        PipelinePlan all = PipelinePlan.of(plan, place.pipelineRanks, stagesPerRank);
        int last = all.stages() - 1;
        all.place(0, plan.group("embedding").parameters());
        for (int stage = 0; stage <= last; stage++) {
            for (int i = all.firstLayer(layerCount, stage); i < all.firstLayer(layerCount, stage + 1); i++) {
                all.place(stage, plan.group("layers." + i).parameters());
            }
        }
        all.place(last, plan.group("norm").parameters());
        all.place(last, plan.group("head").parameters());
        return variant.isTied() ? all.place(last, List.of(embedding.weight())) : all;
    }

    PipelinePlan stages() {
        return stages;
    }

    private int part(int microBatch) {
        return microBatch * place.dataRanks + place.dataRank;
    }

    private Batch batch(int microBatch) {
        return Batch.of(variant, step, part(microBatch));
    }

    /** Returns whether a micro-batch has sequences. */
    boolean hasSequences(int microBatch) {
        return variant.lengths(step, part(microBatch)).length > 0;
    }

    /**
     * Begins a step.
     *
     * @return the labelled tokens that are this rank's, to be summed in place over ranks, INT32 [1]: what the loss is divided by
     */
    Tensor begin(int newStep, int microBatches) {
        step = newStep;
        loss = 0;
        int count = 0;
        try (Scope own = scope.open()) {
            for (int i = 0; i < microBatches; i++) {
                for (int label : own(own, batch(i).labels).toInts(stream())) {
                    count += label == UNLABELLED ? 0 : 1;
                }
            }
        }
        labelled.set(stream(), count);
        return labelled;
    }

    /** Returns this rank's term of the step's loss. */
    float loss() {
        return loss;
    }

    private Stream stream() {
        return device.stream();
    }

    /** Returns this rank's part of what belongs to all tokens. */
    private Tensor own(Scope memory, int... values) {
        Tensor tensor = memory.tensor(DType.INT32, values.length);
        tensor.set(stream(), values);
        return plan.contextParallel().own(tensor, memory);
    }

    private void enter(int microBatch, Pass pass) {
        pass.seed(SEED, step, part(microBatch));
        int[] lengths = batch(microBatch).lengths;
        ContextParallel ranks = plan.contextParallel();
        if (ranks.gathersKeys()) {
            long tokens = Arrays.stream(lengths).sum();
            long end = ranks.begin(tokens, ranks.rank() + 1);
            pass.sequences(PackedChunk.of(pass.scope(), ranks.begin(tokens, ranks.rank()), end, lengths));
        } else {
            pass.sequences(Sequences.packed(pass.scope(), lengths));
        }
    }

    private Tensor embed(int microBatch, Pass pass) {
        return embedding.forward(own(pass.scope(), batch(microBatch).ids), pass);
    }

    private void score(Tensor y, int microBatch, Pass pass) {
        Tensor logits = head.forward(gather.forward(norm.forward(y, pass), pass), pass);
        Tensor labels = own(pass.scope(), batch(microBatch).labels);
        loss += crossEntropy.forward(logits, labels, labelled, pass).toFloats(stream())[0];
    }

    private Tensor scoreGradient(Pass pass) {
        return norm.backward(gather.backward(head.backward(crossEntropy.backward(pass), pass), pass), pass);
    }

    /** Forward and backward of the whole model. */
    void compute(int microBatch, Pass pass) {
        enter(microBatch, pass);
        score(layers.getFirst().forward(embed(microBatch, pass), pass), microBatch, pass);
        embedding.backward(layers.getFirst().backward(scoreGradient(pass), pass), pass);
    }

    @Override
    public long tokens(int microBatch) {
        long tokens = plan.contextParallel().count(batch(microBatch).ids.length);
        TensorParallel ranks = plan.tensorParallel();
        return ranks.isSequenceParallel() ? tokens / ranks.size() : tokens;
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
            embedding.backward(layers.get(stage).backward(gradient, pass), pass);
        }
    }

    @Override
    public void close() {
        scope.close();
        parameters.close();
    }
}
