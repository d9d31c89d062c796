# CMAKE generated file: DO NOT EDIT!
# Timestamp file for compiler generated dependencies management for strategies_formats_pickle_test.
