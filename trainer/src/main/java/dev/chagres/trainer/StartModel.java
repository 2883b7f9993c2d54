package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.batch.TrainedModel;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.ModelFiles;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import java.nio.file.Path;
import java.util.Optional;

/**
 * What a run has to know of the model that it trains.
 *
 * <p>Threading: immutable.
 */
interface StartModel {
    /** Returns what kind of model it is, {@code ESM-2}. */
    String kind();

    /** Returns by how many heads ranks can divide attention: those of keys, where they are fewer. */
    int heads();

    int layers();

    /** Returns what backward of such a model usually recomputes. */
    Recomputation recomputation();

    /** Returns how the model is made. */
    TrainedModel.Factory factory(int context, Recomputation recomputation);

    /** Returns how transformers finds it in a folder, with its own context if that is longer; empty where transformers computes another form. */
    Optional<ModelFiles> files(int context, DType dtype);

    /** Loads the weights of a folder. */
    void load(RunState weights, Path folder);

    /** An ESM-2. */
    record Proteins(Esm2Config config) implements StartModel {
        @Override
        public String kind() {
            return "ESM-2";
        }

        @Override
        public int heads() {
            return config.heads();
        }

        @Override
        public int layers() {
            return config.layers();
        }

        @Override
        public Recomputation recomputation() {
            return config.recomputation();
        }

        @Override
        public Esm2Config factory(int context, Recomputation recomputation) {
            return config.withContext(context).withRecomputation(recomputation);
        }

        @Override
        public Optional<ModelFiles> files(int context, DType dtype) {
            return Esm2Checkpoint.files(config.withContext(Math.max(context, config.context())), dtype);
        }

        @Override
        public void load(RunState weights, Path folder) {
            Esm2Checkpoint.load(weights, folder);
        }
    }

    /**
     * A decoder.
     *
     * @param folder that has its tokenizer
     */
    record Decoders(DecoderConfig config, Path folder) implements StartModel {
        @Override
        public String kind() {
            return config.form().architecture().className();
        }

        @Override
        public int heads() {
            return config.sizes().keyHeads();
        }

        @Override
        public int layers() {
            return config.sizes().layers();
        }

        @Override
        public Recomputation recomputation() {
            return config.recomputation();
        }

        @Override
        public DecoderConfig factory(int context, Recomputation recomputation) {
            return config.withContext(context).withRecomputation(recomputation);
        }

        @Override
        public Optional<ModelFiles> files(int context, DType dtype) {
            return Optional.of(DecoderCheckpoint.files(
                    config.withContext(Math.max(context, config.sizes().context())), dtype, folder));
        }

        @Override
        public void load(RunState weights, Path from) {
            DecoderCheckpoint.load(weights, from);
        }
    }
}
