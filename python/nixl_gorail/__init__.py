"""GORAIL"""
