package dev.chagres.trainer.command;

import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** In how many bits a command computes the products of a model's layers. */
final class RecipeOption {
    /** Values of the option: recipes that need no history of earlier batches. */
    enum Name {
        FP8_CURRENT(Float8CurrentScaling.standard()),
        FP8_BLOCK(Float8BlockScaling.standard());

        private final Recipe recipe;

        Name(Recipe recipe) {
            this.recipe = recipe;
        }
    }

    static final class Words extends EnumOption<Name> {
        Words() {
            super(Name.class);
        }
    }

    @Option(
            names = "--recipe",
            converter = Words.class,
            paramLabel = "fp8-current|fp8-block",
            description =
                    "compute the products of the layers in eight bits, with scales of each tensor or each block (default:"
                            + " in the type of --dtype)")
    private @Nullable Name name;

    /**
     * Checks that a model's weights can be cast.
     *
     * @param dtype of the weights, in a word
     * @throws IllegalArgumentException when there is a recipe, and they cannot
     */
    void requireWeights(String dtype) {
        if (name != null && dtype.equals("fp32")) {
            throw new IllegalArgumentException("--dtype: expected bf16 or fp16 with --recipe " + EnumOption.word(name)
                    + ", got " + dtype + "; add --dtype bf16");
        }
    }

    /** Returns the recipe in a word, {@code dtype} where there is none. */
    String word(String dtype) {
        return name == null ? dtype : EnumOption.word(name);
    }

    /** Returns the recipe, null where products are computed in the model's type. */
    @Nullable
    Recipe recipe() {
        return name == null ? null : name.recipe;
    }
}
