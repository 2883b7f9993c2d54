package dev.chagres.models.transformer;

import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.batch.LayeredModel;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormLayer;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * What all heads of a transformer read: {@code hidden = norm(layers(embedding(ids)))}, with rotary positions.
 *
 * <p>It declares its parameters in the groups {@code embedding}, {@code layers.0} and so on, and {@code norm} of a plan. A head declares its own
 * behind them; then {@link #allocate} asks for the memory of all. In a plan of tensor-parallel ranks the layers are split among them, and so is
 * the vocabulary.
 *
 * <p>Threading: the device's thread.
 */
public final class TransformerBody implements AutoCloseable {
    /** How embeddings, products and heads begin: normal with deviation 0.02. */
    public static final Initializer WEIGHTS = Initializer.normal(0.02f);

    private static final String EMBEDDING = "embedding";
    private static final String LAYERS = "layers.";
    private static final String NORM = "norm";

    /** What backward of a model's layers recomputes, so that they save less. */
    public enum Recomputation {
        /** Nothing: usual of decoders. */
        NONE,
        /** The activation's output, [T, F], or its copy in eight bits: {@link MlpConfig.Recomputation#ACTIVATION}. Usual of ESM-2s. */
        ACTIVATION,
        /** Also the outputs of their norms: {@link TransformerLayerConfig.Recomputation#NORMS}. */
        NORMS,
        /** Everything: each layer is {@link Recomputed}, and saves its input only. */
        LAYERS
    }

    /**
     * Sizes and form.
     *
     * <p>Threading: immutable.
     *
     * @param vocabulary rows of the embedding's table
     * @param layers of each layer
     * @param norm of the norm behind the layers; its size is H
     * @param rotary how queries and keys are rotated
     * @param context longest sequence in tokens
     * @param recomputation what of layers is computed again: theirs are given the norms, and model configurations the activation
     */
    public record Config(
            int vocabulary,
            List<TransformerLayerConfig> layers,
            NormConfig norm,
            RotaryConfig rotary,
            int context,
            Recomputation recomputation) {
        /** Copies the list, of layers that recompute their norms where these are to be. */
        public Config {
            layers = recomputation == Recomputation.NORMS
                    ? layers.stream()
                            .map(layer -> layer.withRecomputation(TransformerLayerConfig.Recomputation.NORMS))
                            .toList()
                    : List.copyOf(layers);
            Objects.requireNonNull(norm, NORM);
            Objects.requireNonNull(rotary, "rotary");
            Objects.requireNonNull(recomputation, "recomputation");
        }

        /**
         * Returns which parts of a model have which parameters, for the ranks of a pipeline.
         *
         * @param declared where the model has declared its parameters
         * @param head groups that the head reads, {@code embedding} among them if it reads the table
         */
        public LayeredModel.Parts parts(ModelPlan declared, String... head) {
            List<Parameter> end = Stream.concat(Stream.of(NORM), Stream.of(head))
                    .flatMap(name -> declared.group(name).parameters().stream())
                    .toList();
            return new LayeredModel.Parts(
                    declared.group(EMBEDDING).parameters(),
                    IntStream.range(0, layers.size())
                            .mapToObj(i -> declared.group(LAYERS + i).parameters())
                            .toList(),
                    end,
                    norm.size());
        }
    }

    /**
     * What is computed of embeddings before the layers read them.
     *
     * <p>Threading: the device's thread.
     */
    public interface EmbeddingStep {
        /**
         * Enqueues the step.
         *
         * @param x embeddings: a row for each token, or for each of this rank's part of them
         * @param ids INT32 [T]
         */
        Tensor scale(Tensor x, Tensor ids, Pass pass);

        /** Enqueues the gradient of the latest {@link #scale}. */
        Tensor backward(Tensor dy, Pass pass);
    }

    private final Config config;
    private final ModelPlan plan;
    private final Embedding embedding;
    private final @Nullable EmbeddingStep step;
    private final List<TransformerLayer> blocks;
    private final Sequential layers;
    private final NormLayer norm;
    /** Behind the layers and their norm, of which sequence-parallel ranks have a part of the tokens each, as of the embedding. */
    private final TokenGather gather;
    /** Null before {@link #allocate}. */
    private @Nullable Scope scope;

    private @Nullable Parameters parameters;

    /**
     * Declares the parameters.
     *
     * @param step what is computed of embeddings; null for nothing
     * @param plan an empty one
     * @throws IllegalArgumentException when attention does not take the head dimension
     */
    public TransformerBody(Config config, @Nullable EmbeddingStep step, ModelPlan plan) {
        this.config = Objects.requireNonNull(config, "config");
        this.plan = Objects.requireNonNull(plan, "plan");
        this.step = step;
        embedding =
                Embedding.vocabularyParallel(config.vocabulary(), config.norm().size(), WEIGHTS, plan.group(EMBEDDING));
        int count = config.layers().size();
        blocks = IntStream.range(0, count)
                .mapToObj(i -> new TransformerLayer(config.layers().get(i), plan.group(LAYERS + i)))
                .toList();
        boolean recomputes = config.recomputation() == Recomputation.LAYERS;
        layers = Sequential.of(count, i -> recomputes ? new Recomputed(blocks.get(i)) : blocks.get(i));
        norm = NormLayer.of(config.norm(), plan.group(NORM).forTokenParts());
        gather = new TokenGather(plan);
    }

    /**
     * Gives the layers their rotation, and all parameters of the plan memory. Where that fails, nothing keeps memory.
     *
     * @param constants called with the scope of what has no gradient, which this closes
     * @param memory called once
     * @throws IllegalStateException when there was a call before
     */
    public void allocate(Device device, Consumer<Scope> constants, Function<ModelPlan, Parameters> memory) {
        if (scope != null) {
            throw new IllegalStateException("allocate: expected one call, got a second one");
        }
        Scope opened = device.openScope();
        try {
            RotaryEmbedding rotary = RotaryEmbedding.of(opened, config.context(), config.rotary());
            blocks.forEach(block -> block.rotate(rotary));
            constants.accept(opened);
            parameters = memory.apply(plan);
            scope = opened;
        } catch (RuntimeException | Error failure) {
            opened.close();
            throw failure;
        }
    }

    /** Returns where all parameters are declared. */
    public ModelPlan plan() {
        return plan;
    }

    /**
     * Returns all parameters of the plan.
     *
     * @throws IllegalStateException when they have no memory yet
     */
    public Parameters parameters() {
        Parameters own = parameters;
        if (own == null) {
            throw new IllegalStateException("parameters: expected a call of allocate before");
        }
        return own;
    }

    /** Returns the embedding's table, which a tied head reads. */
    public Parameter table() {
        return embedding.weight();
    }

    /** Returns the layers, none of which recomputes. */
    public List<TransformerLayer> blocks() {
        return blocks;
    }

    /** Returns the layers as they run. */
    public List<Layer> layers() {
        return layers.layers();
    }

    /**
     * Enqueues the hidden states.
     *
     * @param ids INT32 [T]
     * @return [T, H]
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor forward(Tensor ids, Pass pass) {
        return end(layers.forward(begin(ids, pass), pass), pass);
    }

    /** Enqueues what comes before the layers. */
    public Tensor begin(Tensor ids, Pass pass) {
        Tensor x = embedding.forward(ids, pass);
        return step == null ? x : step.scale(x, ids, pass);
    }

    /** Enqueues what comes behind the layers. */
    public Tensor end(Tensor x, Pass pass) {
        return gather.forward(norm.forward(x, pass), pass);
    }

    /** Enqueues the gradients of the latest {@link #forward}. */
    public void backward(Tensor dy, Pass pass) {
        Tensor gradient = endBackward(dy, pass);
        layers.backward(gradient, gradient, pass);
        beginBackward(gradient, pass);
    }

    /** Enqueues the gradients of the latest {@link #end}, and returns that of what the last layer has made. */
    public Tensor endBackward(Tensor dy, Pass pass) {
        return norm.backward(gather.backward(dy, pass), pass);
    }

    /** Enqueues the gradients of the latest {@link #begin}. */
    public void beginBackward(Tensor dy, Pass pass) {
        embedding.backward(step == null ? dy : step.backward(dy, pass), pass);
    }

    /** Frees parameters, gradients and constants. A second call does nothing. */
    @Override
    public void close() {
        if (parameters != null && scope != null) {
            parameters.close();
            scope.close();
        }
    }
}
