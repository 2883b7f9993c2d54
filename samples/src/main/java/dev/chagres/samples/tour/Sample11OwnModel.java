package dev.chagres.samples.tour;

import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.TrainedModel;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.Trainer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** Trains a classifier of {@link Points} inside and outside a circle, on one rank and on four; each run is resumed halfway. */
record Sample11OwnModel(Embedding embedding, Linear head, CrossEntropy crossEntropy, Parameters parameters)
        implements TrainedModel {
    static Sample11OwnModel make(Device device, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
        Embedding embedding = new Embedding(256, 32, Initializer.normal(0.5f), plan.group("embedding"));
        Linear head = new Linear(32, 2, Initializer.normal(0.1f), plan.group("head"));
        return new Sample11OwnModel(embedding, head, new CrossEntropy(2), memory.apply(plan));
    }

    @Override
    public Tensor loss(ModelInput input, Pass pass) {
        return crossEntropy.forward(head.forward(embedding.forward(input.ids(), pass), pass), input.labels(), pass);
    }

    @Override
    public void backward(float factor, @Nullable Tensor lossScale, Pass pass) {
        embedding.backward(head.backward(crossEntropy.backward(factor, lossScale, pass), pass), pass);
    }

    @Override
    public double flops(Batch batch) {
        return 6.0 * 32 * 2 * batch.tokens();
    }

    static void run() throws Exception {
        List<Double> one = train(1);
        List<Double> four = train(Math.min(4, Device.count()));
        Tour.near("the last loss of four ranks", one.getLast(), four.getLast(), 1e-3);
        if (four.getLast() > 0.5 * four.getFirst()) {
            throw new IllegalStateException("expected a loss that falls to a half, got " + four);
        }
        System.out.printf(
                "11 own model: loss %.3f fell to %.3f in %d steps%n", one.getFirst(), one.getLast(), one.size());
    }

    private static List<Double> train(int ranks) throws Exception {
        Path file = Files.createTempFile("points", ".safetensors");
        List<Double> losses = new ArrayList<>();
        Trainer trainer = Trainer.of(Sample11OwnModel::make, new BatchShape(BatchLayout.PACKED, 1024, 16, 4))
                .withRanks(ranks)
                .withSchedule(new LearningRateSchedule(0.01f, 5, 60, LearningRateSchedule.Decay.LINEAR, 0.1f))
                .withCallback(Callback.eachStep(step -> losses.add(step.loss())))
                .withSave(file, 10);
        trainer.train(Points::new, 30);
        trainer.withResume(file).train(Points::new, 60); // goes on behind the points that were taken
        Files.delete(file);
        return losses;
    }
}
