package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.LayerNormLinear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.stream.IntStream;

/**
 * Which residues of a protein touch, by the attention of an ESM-2: {@code p = sigmoid(b + sum over maps of w apc(a + a^T))}, where a has the
 * probabilities of a layer's head between residues, and {@code apc(a) = a - rows(a) columns(a) / total(a)}.
 *
 * <p>Layers compute probabilities in kernels that do not tell them. So this computes them a second time, on the host, from the queries and keys
 * of each layer. It takes about {@code 4 L^2 H} operations a layer for L residues, and memory for {@code 3 L^2} numbers.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Rao et al., "Transformer protein language models are unsupervised structure learners", ICLR 2021; {@code EsmContactPredictionHead}
 * of transformers 5.17.
 */
public final class ContactPredictor implements AutoCloseable {
    /**
     * The logistic regression over the maps.
     *
     * @param weights of layer 0's heads, then layer 1's, and so on
     */
    public record Regression(List<Float> weights, float bias) {
        /** Copies the weights. */
        public Regression {
            weights = List.copyOf(weights);
        }
    }

    private final Esm2 model;
    private final Regression regression;
    private final Pass pass;
    private final LayerNormLinear qkv;
    private final Parameters parameters;

    /**
     * Reads from {@code model}, which stays the caller's.
     *
     * @param model on one rank
     * @throws IllegalArgumentException when there is not a weight for each head of each layer
     */
    public ContactPredictor(Esm2 model, Regression regression) {
        this.model = Objects.requireNonNull(model, "model");
        this.regression = Objects.requireNonNull(regression, "regression");
        Esm2Config config = model.config();
        int maps = config.layers() * config.heads();
        if (regression.weights().size() != maps) {
            throw new IllegalArgumentException(
                    "regression: expected " + maps + " weights, one of each head of each layer," + " got "
                            + regression.weights().size());
        }
        Stream stream = model.parameters().scope().stream();
        ModelPlan plan = new ModelPlan();
        qkv = new LayerNormLinear(config.norm(), 3L * config.hidden(), TransformerBody.WEIGHTS, plan.group("qkv"));
        pass = Pass.evaluation(stream);
        parameters =
                Parameters.allocate(stream.device(), plan, model.parameters().dtype(), 0);
    }

    /**
     * Returns the probability of a contact between each two residues; it waits for the device.
     *
     * @param tokens of a protein, with {@code <cls>} and {@code <eos>}
     * @return L rows of L numbers for L residues
     * @throws IllegalArgumentException when there are fewer than 3 tokens, or more than the context
     */
    public float[][] contacts(int... tokens) {
        Esm2Config config = model.config();
        if (tokens.length < 3 || tokens.length > config.context()) {
            throw new IllegalArgumentException(
                    "tokens: expected 3 to " + config.context() + ", the context, got " + tokens.length);
        }
        int count = tokens.length;
        Maps maps = new Maps(config, count);
        pass.begin();
        pass.sequences(Sequences.packed(pass.scope(), count));
        Tensor ids = pass.scope().tensor(DType.INT32, count);
        ids.set(pass.stream(), tokens);
        Tensor x = model.body().begin(ids, pass);
        Tensor projected = pass.scope().tensor(parameters.dtype(), count, 3L * config.hidden());
        List<TransformerLayer> layers = model.body().blocks();
        for (int i = 0; i < layers.size(); i++) {
            take(layers.get(i));
            qkv.forward(x, projected, pass);
            maps.add(projected.toFloats(pass.stream()), i, regression);
            if (i + 1 < layers.size()) {
                x = layers.get(i).forward(x, pass);
            }
        }
        return maps.probabilities(regression.bias());
    }

    /** Copies the weights of a layer's norm, queries and keys. */
    private void take(TransformerLayer layer) {
        String name = layer.attention().name() + ".qkv";
        for (String one : List.of(".norm.weight", ".norm.bias", ".linear.weight", ".linear.bias")) {
            Parameter own = model.parameters().get(name + one);
            parameters.get("qkv" + one).weight().copyFrom(pass.stream(), own.weight());
        }
        parameters.changed();
    }

    /** What the maps of all layers and heads add up to. */
    private static final class Maps {
        private final Esm2Config config;
        private final int tokens;
        private final int residues;
        private final double[] frequencies;
        private final double[][] sum;

        Maps(Esm2Config config, int tokens) {
            this.config = config;
            this.tokens = tokens;
            residues = tokens - 2;
            sum = new double[residues][residues];
            int d = config.headDim();
            List<Double> own = config.form().frequencies();
            frequencies = IntStream.range(0, d / 2)
                    .mapToDouble(i -> own.isEmpty() ? Math.pow(10_000, -2.0 * i / d) : own.get(i))
                    .toArray();
        }

        /** Adds those of a layer, whose rows of {@code projected} have queries, keys and values of all heads. */
        void add(float[] projected, int layer, Regression regression) {
            for (int head = 0; head < config.heads(); head++) {
                float[][] q = rotated(projected, head * config.headDim());
                float[][] k = rotated(projected, config.hidden() + head * config.headDim());
                float[][] map = new float[residues][];
                IntStream.range(0, residues).parallel().forEach(i -> map[i] = probabilities(q, k, i + 1));
                addCorrected(map, regression.weights().get(layer * config.heads() + head));
            }
        }

        /** Returns columns {@code begin} to {@code begin + d} of all tokens, rotated; a row a column. */
        private float[][] rotated(float[] projected, int begin) {
            int half = frequencies.length;
            float[][] columns = new float[2 * half][tokens];
            for (int t = 0; t < tokens; t++) {
                int at = t * 3 * config.hidden() + begin;
                for (int i = 0; i < half; i++) {
                    double cos = Math.cos(t * frequencies[i]);
                    double sin = Math.sin(t * frequencies[i]);
                    float a = projected[at + i];
                    float b = projected[at + half + i];
                    columns[i][t] = (float) (a * cos - b * sin);
                    columns[half + i][t] = (float) (b * cos + a * sin);
                }
            }
            return columns;
        }

        /** Returns the attention of token {@code query} to all residues. */
        private float[] probabilities(float[][] q, float[][] k, int query) {
            float[] scores = new float[tokens];
            for (int c = 0; c < q.length; c++) {
                float own = (float) (q[c][query] / Math.sqrt(q.length));
                float[] keys = k[c];
                for (int t = 0; t < tokens; t++) {
                    scores[t] += own * keys[t];
                }
            }
            float most = Float.NEGATIVE_INFINITY;
            for (float score : scores) {
                most = Math.max(most, score);
            }
            double total = 0;
            for (int t = 0; t < tokens; t++) {
                scores[t] = (float) Math.exp(scores[t] - most);
                total += scores[t];
            }
            float[] row = Arrays.copyOfRange(scores, 1, tokens - 1);
            for (int i = 0; i < residues; i++) {
                row[i] /= (float) total;
            }
            return row;
        }

        private void addCorrected(float[][] map, double weight) {
            double[] rows = new double[residues];
            IntStream.range(0, residues).parallel().forEach(i -> {
                for (int j = 0; j < residues; j++) {
                    rows[i] += (double) map[i][j] + map[j][i];
                }
            });
            double total = Arrays.stream(rows).sum();
            IntStream.range(0, residues).parallel().forEach(i -> {
                for (int j = 0; j < residues; j++) {
                    double symmetric = (double) map[i][j] + map[j][i];
                    sum[i][j] += weight * (symmetric - rows[i] * rows[j] / total);
                }
            });
        }

        float[][] probabilities(double bias) {
            float[][] all = new float[residues][residues];
            for (int i = 0; i < residues; i++) {
                for (int j = 0; j < residues; j++) {
                    all[i][j] = (float) (1 / (1 + Math.exp(-(sum[i][j] + bias))));
                }
            }
            return all;
        }
    }

    /** Frees the memory of the calls; the model stays. */
    @Override
    public void close() {
        parameters.close();
        pass.close();
    }
}
