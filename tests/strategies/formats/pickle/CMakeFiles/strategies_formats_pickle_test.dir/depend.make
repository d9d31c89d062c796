# Empty dependencies file for strategies_formats_pickle_test.
# This may be replaced when dependencies are built.
