package dev.chagres.trainer.finetune;

import dev.chagres.trainer.command.EnumOption;

/** By which evaluations are compared: what {@code --metric} says. */
enum Metric {
    LOSS("loss"),
    ACCURACY("accuracy"),
    MICRO_F1("micro F1"),
    MACRO_F1("macro F1"),
    MATTHEWS("Matthews"),
    SPEARMAN("Spearman"),
    PEARSON("Pearson"),
    MSE("MSE");

    private final String text;

    Metric(String text) {
        this.text = text;
    }

    /** Reads the option. */
    static final class Words extends EnumOption<Metric> {
        Words() {
            super(Metric.class);
        }
    }

    /** Returns how a line for people names it. */
    String text() {
        return text;
    }

    /** Returns whether smaller values are better. */
    boolean isError() {
        return this == LOSS || this == MSE;
    }
}
