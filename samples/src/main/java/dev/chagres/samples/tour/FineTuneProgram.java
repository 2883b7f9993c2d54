package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TokenSequences;
import dev.chagres.checkpoint.Retention;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.pass.Pass;
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.callback.Checkpoints;
import dev.chagres.trainer.callback.EarlyStopping;
import dev.chagres.trainer.callback.Evaluation;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** Fine-tunes an ESM-2 to tell classes of proteins apart, and saves the best one as a folder that transformers opens. */
final class FineTuneProgram {
    private static final int STEPS = 200;
    private static final int EVERY = 10; // steps between evaluations
    private static final BatchShape STEP = new BatchShape(BatchLayout.PACKED, 4096, 1024); // tokens, longest sequence

    private final Path model;
    private final List<String> names;

    /** Begins with the ESM-2 in a folder of Hugging Face, to which a head for {@code names} is added. */
    FineTuneProgram(Path model, List<String> names) {
        this.model = model;
        this.names = names;
    }

    /** A line of a file: residues, a comma, the name of a class. */
    record Protein(String residues, String name) {
        static List<Protein> read(Path file) throws IOException {
            return Files.readAllLines(file).stream()
                    .map(line -> line.split(","))
                    .map(columns -> new Protein(columns[0], columns[1]))
                    .toList();
        }

        int[] tokens() {
            return IntStream.concat(
                            IntStream.concat(
                                    IntStream.of(EsmVocabulary.CLS),
                                    residues.chars().map(letter -> EsmVocabulary.token((byte) letter))),
                            IntStream.of(EsmVocabulary.EOS))
                    .toArray();
        }
    }

    public static void main(String... files) throws IOException, InterruptedException {
        List<Protein> training = Protein.read(Path.of(files[1]));
        List<String> names =
                training.stream().map(Protein::name).distinct().sorted().toList();
        var program = new FineTuneProgram(Path.of(files[0]), names);
        EarlyStopping stopping = program.train(training, Protein.read(Path.of(files[2])), Path.of("run"));
        program.save(Path.of("run"), stopping.bestStep(), Path.of("tuned"));
        System.out.println(program.classify(Path.of("tuned"), "MKTAYIAKQR"));
    }

    /** Trains until the loss of {@code heldOut} has not fallen for three evaluations. Keeps checkpoints of the best and the last. */
    EarlyStopping train(List<Protein> training, List<Protein> heldOut, Path run) throws InterruptedException {
        var config = new Esm2ClassifierConfig(
                Esm2Checkpoint.config(model), Esm2ClassifierConfig.Task.SEQUENCES, names.size());
        var stopping = new EarlyStopping(3, 0);
        var random = new Random(1);
        Trainer.of(config, STEP)
                .withDtype(DType.FLOAT32)
                .withStart(weights -> Esm2Checkpoint.begin(weights, model))
                .withSchedule(new LearningRateSchedule(1e-3f, 10, STEPS, LearningRateSchedule.Decay.LINEAR, 0))
                .withEvaluation(Evaluation.of(() -> new Labelled(heldOut.iterator()), STEP)
                        .withEvery(EVERY))
                .withCallback(stopping)
                .withCheckpoints(Checkpoints.in(run).withEvery(EVERY).with(new Retention(1, 0, 1)))
                .withModelFiles(Esm2Checkpoint.files(config, DType.FLOAT32).orElseThrow())
                .train(() -> new Labelled(epochs(training, random)), STEPS);
        return stopping;
    }

    /** Without end, each time in another order. */
    private static Iterator<Protein> epochs(List<Protein> training, Random random) {
        return Stream.generate(() -> new ArrayList<>(training))
                .peek(epoch -> Collections.shuffle(epoch, random))
                .flatMap(List::stream)
                .iterator();
    }

    /** Makes a folder of a checkpoint, with the names of the classes and the tokenizer. */
    void save(Path run, int step, Path folder) {
        Path best = run.resolve("step-%08d".formatted(step));
        try (Device device = Device.open();
                Esm2Classifier classifier = Esm2Checkpoint.openClassifier(device, best, DType.FLOAT32)) {
            Esm2Checkpoint.save(classifier, folder, SaveConfig.standard().withLabels(names));
        }
    }

    /** Returns the name of the class with the highest score. */
    String classify(Path folder, String residues) {
        int[] tokens = new Protein(residues, "").tokens();
        try (Device device = Device.open();
                Esm2Classifier classifier = Esm2Checkpoint.openClassifier(device, folder, DType.FLOAT32);
                Pass pass = Pass.evaluation(device)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), tokens.length));
            Tensor ids = pass.scope().tensor(DType.INT32, tokens.length);
            ids.set(device.stream(), tokens);
            float[] scores = classifier.logits(ids, pass).toFloats(device.stream()); // a row for each token
            int best = IntStream.range(0, names.size()) // of the first one, <cls>
                    .reduce((a, b) -> scores[b] > scores[a] ? b : a)
                    .orElseThrow();
            return Esm2Checkpoint.labels(folder).get(best);
        }
    }

    /** Proteins as a trainer reads them: the label of a sequence is that of its first token. */
    private final class Labelled implements TokenSequences {
        private final Iterator<Protein> left;
        private int[] tokens = {};
        private int label;

        Labelled(Iterator<Protein> proteins) {
            left = proteins;
        }

        @Override
        public boolean advance() {
            if (!left.hasNext()) {
                return false;
            }
            Protein next = left.next();
            tokens = next.tokens();
            label = names.indexOf(next.name());
            return true;
        }

        @Override
        public int length() {
            return tokens.length;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            for (int i = 0; i < count; i++) { // of a longer protein the first ones
                ids[start + i] = tokens[i];
                labels[start + i] = i == 0 ? label : Batch.IGNORED;
            }
            return 1; // so many have a label
        }

        @Override
        public int padding() {
            return EsmVocabulary.PAD;
        }
    }
}
